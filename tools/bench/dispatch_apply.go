package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/render"
	"lockstep.internal/tools/testkit/lab"
	"lockstep.internal/tools/testkit/natsd"
)

// appliedWorkspaces is how many one turn has.
const appliedWorkspaces = 24

// applyBed is a kubelab, and a dispatcher that reads from NATS.
type applyBed struct {
	js      jetstream.JetStream
	results jetstream.Consumer
	bare    metadata.Interface
	workers int
	made    int
}

func measureApplied(ctx context.Context, measured Measured, size Size) (err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	b, err := newApplyBed(ctx, parts)
	if err != nil {
		return err
	}
	n := size.of(appliedWorkspaces)
	ours, bare, err := takeTurns(ctx, size.For,
		func(ctx context.Context, _ int) (float64, error) { return b.timed(ctx, n, b.dispatch) },
		func(ctx context.Context, _ int) (float64, error) { return b.timed(ctx, n, b.apply) })
	if err != nil {
		return err
	}
	measured["applied_per_s"] = beside(median(ours), median(bare))
	return nil
}

func newApplyBed(ctx context.Context, parts *bed) (*applyBed, error) {
	dir, err := parts.folder()
	if err != nil {
		return nil, err
	}
	cluster, err := lab.Start(ctx, lab.Options{Name: "bench"})
	if err != nil {
		return nil, fmt.Errorf("start the Kubernetes control plane: %w", err)
	}
	parts.onClose(func(context.Context) error { return cluster.Stop() })
	cfg := dispatcher.DefaultConfig()
	b := &applyBed{workers: cfg.Workers}
	rest, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	rest.QPS = -1
	if b.bare, err = metadata.NewForConfig(rest); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	server, err := natsd.Start(natsd.Options{})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	parts.onClose(func(context.Context) error { return server.Stop() })
	conn, err := parts.connect(server.ClientURL())
	if err != nil {
		return nil, err
	}
	if b.js, err = parts.streams(ctx, conn); err != nil {
		return nil, err
	}
	if err := topology.EnsureAgent(ctx, b.js, benchCell, benchAgent); err != nil {
		return nil, fmt.Errorf("make the agent's consumers: %w", err)
	}
	if b.results, err = b.js.CreateConsumer(ctx, topology.StreamApplied, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Hour}); err != nil {
		return nil, fmt.Errorf("follow results: %w", err)
	}
	cfg.CredentialsFile, cfg.Kubeconfig = filepath.Join(dir, "agent.json"), cluster.Kubeconfig()
	cfg.Ops.Listen = "127.0.0.1:0"
	cfg.Telemetry.LogLevel = "error"
	if err := writeCredentials(cfg.CredentialsFile, benchAgent, server.ClientURL()); err != nil {
		return nil, err
	}
	parts.background(ctx, func(ctx context.Context) error { return dispatcher.Main(ctx, cfg) })
	// The first waits until the dispatcher leads.
	_, err = b.timed(ctx, 1, b.dispatch)
	return b, err
}

// timed makes workspaces and gives how many a second are brought into the cluster.
func (b *applyBed) timed(ctx context.Context, n int, bring func(ctx context.Context, workspaces []domain.Workspace) error) (float64, error) {
	workspaces := make([]domain.Workspace, n)
	for i := range workspaces {
		b.made++
		w, err := domain.NewWorkspace(domain.Creation{
			Name: fmt.Sprintf("w%06d", b.made), ProjectID: 4, AgentID: benchAgent, UserID: 9, Template: "default", Now: time.Now(),
			Spec: domain.Spec{
				Image: "registry.example.com/platform/workspaces/ide:2026.11.3", Ports: []domain.Port{{Name: "web", Number: 8080}},
				Env: map[string]string{"EDITOR": "vim"}, CPU: "2", Memory: "4Gi", VolumeSize: "10Gi",
			},
		})
		if err != nil {
			return 0, fmt.Errorf("make a workspace: %w", err)
		}
		w.DesiredState = domain.DesiredStopped // so that no pods burden the machine
		workspaces[i] = w
	}
	began := time.Now()
	err := bring(ctx, workspaces)
	return float64(n) / time.Since(began).Seconds(), err
}

// dispatch tells the dispatcher and waits for its results.
func (b *applyBed) dispatch(ctx context.Context, workspaces []domain.Workspace) error {
	for _, w := range workspaces {
		data, err := render.Encoded(w, render.Options{})
		if err != nil {
			return fmt.Errorf("render: %w", err)
		}
		e, err := event.New(event.Attributes{
			Type: events.TypeDesiredWorkspace, Source: event.ServiceSource(string(benchCell), "state"), Subject: w.ID.String(), ID: w.ID.String() + "/dispatch/1", Time: w.CreatedAt,
		}, data)
		if err != nil {
			return fmt.Errorf("make a desired event: %w", err)
		}
		m, err := event.Encode(e, benchCell.Desired(benchAgent, w.ID.String()))
		if err != nil {
			return fmt.Errorf("make a desired event: %w", err)
		}
		if _, err := b.js.PublishMsgAsync(m); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	for range workspaces {
		m, err := b.results.Next(jetstream.FetchContext(ctx))
		if err != nil {
			return fmt.Errorf("wait for a result: %w", err)
		}
		if kind := m.Headers().Get("ce-type"); kind != events.TypeApplied {
			return fmt.Errorf("a workspace was not applied: %s %s", kind, m.Data())
		}
	}
	return nil
}

// apply does no more than apply the manifests.
func (b *applyBed) apply(ctx context.Context, workspaces []domain.Workspace) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(b.workers)
	for _, w := range workspaces {
		group.Go(func() error {
			data, err := render.Encoded(w, render.Options{})
			if err != nil {
				return fmt.Errorf("render: %w", err)
			}
			var rendered struct {
				Manifests []json.RawMessage `json:"manifests"`
			}
			if err := json.Unmarshal(data, &rendered); err != nil {
				return fmt.Errorf("read what was rendered: %w", err)
			}
			for _, manifest := range rendered.Manifests {
				if err := b.patch(ctx, manifest); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait() //nolint:wrapcheck // patch says what failed
}

func (b *applyBed) patch(ctx context.Context, manifest []byte) error {
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(manifest, &object); err != nil {
		return fmt.Errorf("read a manifest: %w", err)
	}
	kind, known := desired.LookupKind(object.APIVersion, object.Kind)
	if !known {
		return fmt.Errorf("kind %s is not known", object.Kind)
	}
	resource := metadata.ResourceInterface(b.bare.Resource(kind.Resource))
	if kind.Namespaced {
		resource = b.bare.Resource(kind.Resource).Namespace(object.Namespace)
	}
	force := true
	if _, err := resource.Patch(ctx, object.Name, types.ApplyPatchType, manifest, metav1.PatchOptions{FieldManager: "bench", Force: &force}); err != nil {
		return fmt.Errorf("apply a %s: %w", object.Kind, err)
	}
	return nil
}
