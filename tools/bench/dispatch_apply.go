package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/state/render"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/lab"
)

// appliedWorkspaces is the number of workspaces of a turn.
const appliedWorkspaces = 24

// applyFixture is a kubelab, and a dispatcher that reads from NATS.
type applyFixture struct {
	js      jetstream.JetStream
	results jetstream.Consumer
	client  metadata.Interface
	workers int
	created int
}

// measureApplied measures from messages on DESIRED to results on APPLIED beside server-side applies
// of the same manifests with as many workers.
func measureApplied(ctx context.Context, f *fixture, size Size, measured Measured) {
	a := newApplyFixture(ctx, f)
	timed := func(n int, apply func(context.Context, []workspace.Workspace)) float64 {
		workspaces := make([]workspace.Workspace, n)
		for i := range workspaces {
			workspaces[i] = a.newWorkspace()
		}
		began := time.Now()
		apply(ctx, workspaces)
		return perSecond(n, began)
	}
	timed(1, a.dispatch) // waits until the dispatcher leads
	n := size.of(appliedWorkspaces)
	measured["applied_per_s"] = takeTurns(ctx, size.For,
		func(int) float64 { return timed(n, a.dispatch) },
		func(int) float64 { return timed(n, a.apply) })
}

func newApplyFixture(ctx context.Context, f *fixture) *applyFixture {
	cluster := must(lab.Start(ctx, lab.Options{Name: "bench"}))
	f.onClose(func(context.Context) error { return cluster.Stop() })
	rest := must(clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig()))
	rest.QPS = -1
	_, js, url := f.jetStream(ctx)
	check(topology.EnsureAgent(ctx, js, benchCell, benchAgent))

	cfg := dispatcher.DefaultConfig()
	cfg.CredentialsFile = f.credentials(benchAgent, natsauth.NewToken(natsauth.TokenAgent), url)
	cfg.Kubeconfig = cluster.Kubeconfig()
	cfg.Ops.Listen = "127.0.0.1:0"
	cfg.Telemetry.LogLevel = "error"
	a := &applyFixture{js: js, client: must(metadata.NewForConfig(rest)), workers: cfg.Workers}
	a.results = must(js.CreateConsumer(ctx, topology.StreamApplied, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Hour,
	}))
	f.background(ctx, func(ctx context.Context) error { return dispatcher.Main(ctx, cfg) })
	return a
}

// newWorkspace returns a stopped workspace: its pods would burden the machine.
func (a *applyFixture) newWorkspace() workspace.Workspace {
	a.created++
	w, _, err := workspace.New(workspace.Creation{
		Name: fmt.Sprintf("w%06d", a.created), ProjectID: 4, AgentID: benchAgent, UserID: 9, Template: "default",
		Now: time.Now(),
		Spec: workspace.Spec{
			Image: "registry.example.com/platform/workspaces/ide:2026.11.3",
			Ports: []workspace.Port{{Name: "web", Number: 8080}},
			Env:   map[string]string{"EDITOR": "vim"}, CPU: "2", Memory: "4Gi", VolumeSize: "10Gi",
		},
	})
	check(err)
	w.DesiredState = workspace.DesiredStopped
	return w
}

// dispatch publishes the desired events and waits for the results.
func (a *applyFixture) dispatch(ctx context.Context, workspaces []workspace.Workspace) {
	for _, w := range workspaces {
		e := must(event.New(event.Attributes{
			Type: events.TypeDesiredWorkspace, Source: event.ServiceSource(string(benchCell), "state"),
			Subject: w.ID.String(), ID: w.ID.String() + "/dispatch/1", Time: w.CreatedAt,
		}, must(render.Desired(w, render.Options{}))))
		must(a.js.PublishMsgAsync(must(event.Encode(e, benchCell.Desired(benchAgent, w.ID.String())))))
	}
	for range workspaces {
		m := must(a.results.Next(jetstream.FetchContext(ctx)))
		if eventType := m.Headers().Get("ce-type"); eventType != events.TypeApplied {
			check(fmt.Errorf("a workspace was not applied: %s %s", eventType, m.Data()))
		}
	}
}

// apply applies the manifests.
func (a *applyFixture) apply(ctx context.Context, workspaces []workspace.Workspace) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(a.workers)
	for _, w := range workspaces {
		group.Go(func() error {
			data, err := render.Desired(w, render.Options{})
			if err != nil {
				return err
			}
			var rendered struct {
				Manifests []json.RawMessage `json:"manifests"`
			}
			if err := json.Unmarshal(data, &rendered); err != nil {
				return fmt.Errorf("decode the manifests: %w", err)
			}
			for _, manifest := range rendered.Manifests {
				if err := a.patch(ctx, manifest); err != nil {
					return err
				}
			}
			return nil
		})
	}
	check(group.Wait())
}

func (a *applyFixture) patch(ctx context.Context, manifest []byte) error {
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(manifest, &object); err != nil {
		return fmt.Errorf("decode a manifest: %w", err)
	}
	kind, known := desired.LookupKind(object.APIVersion, object.Kind)
	if !known {
		return fmt.Errorf("unknown kind %s", object.Kind)
	}
	resource := metadata.ResourceInterface(a.client.Resource(kind.Resource))
	if kind.Namespaced {
		resource = a.client.Resource(kind.Resource).Namespace(object.Namespace)
	}
	options := metav1.PatchOptions{FieldManager: "bench", Force: new(true)}
	if _, err := resource.Patch(ctx, object.Name, types.ApplyPatchType, manifest, options); err != nil {
		return fmt.Errorf("apply a %s: %w", object.Kind, err)
	}
	return nil
}
