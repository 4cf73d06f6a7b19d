package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

const (
	notifiedDeployments = 12
	// notifyLanes are rolled out beside each other, each one Deployment after the other: one alone takes a quarter of a second, most of which is the cluster's.
	notifyLanes = 3
	// notifyPause between changes, of whichever lane.
	notifyPause = 100 * time.Millisecond
	// leastNotified is how many rollouts a percentile of a hundred needs: the value is then what four are above.
	leastNotified   = 400
	notifyNamespace = "default"
	notifyPatience  = time.Minute
	revisionNote    = "deployment.kubernetes.io/revision"
)

// notifyBed is a whole system with a subscriber, and an informer beside it that knows of nothing.
type notifyBed struct {
	client kubernetes.Interface

	mu sync.Mutex
	// heard and seen are when the subscriber and the informer had it; sets and named are the halves of what the informer sees of a start: the ReplicaSet is there, and the
	// Deployment names its revision.
	heard, seen, sets, named map[rolled]time.Time
	changed                  chan struct{}
	err                      error
}

// rolled is a revision of a Deployment.
type rolled struct {
	name     string
	revision int
	// over says that it is about the end of the rollout.
	over bool
}

func measureNotify(ctx context.Context, measured Measured, size Size) (err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	b, err := newNotifyBed(ctx, parts)
	if err != nil {
		return err
	}
	names := make([]string, size.of(notifiedDeployments))
	for i := range names {
		names[i] = fmt.Sprintf("web-%d", i)
		if err := b.create(ctx, names[i]); err != nil {
			return err
		}
	}
	var found notified
	began := time.Now()
	enough := func() bool { return found.rollouts() >= size.of(leastNotified) && time.Since(began) >= size.For }
	pace := time.NewTicker(notifyPause)
	defer pace.Stop()
	lanes, lanesCtx := errgroup.WithContext(ctx)
	for own := range slices.Chunk(names, (len(names)+notifyLanes-1)/notifyLanes) {
		lanes.Go(func() error {
			// The first round is not counted: connections are made, plans are.
			for revision := 2; revision < 2+leastTurns || !enough(); revision++ {
				for _, name := range own {
					select {
					case <-pace.C:
					case <-lanesCtx.Done():
						return fmt.Errorf("roll out: %w", context.Cause(lanesCtx))
					}
					if err := b.once(lanesCtx, name, revision, &found); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := lanes.Wait(); err != nil {
		return err //nolint:wrapcheck // says what failed
	}
	measured["notify_p50_ms"] = beside(median(found.ours), median(found.bare))
	p99 := beside(percentile(found.ours, 99), percentile(found.bare, 99))
	p99.Note = fmt.Sprintf("%d rollouts; later than the informer for the same change: start p50 %.1f p99 %.1f ms, end p50 %.1f p99 %.1f ms",
		len(found.ours), median(found.more), percentile(found.more, 99), median(found.end), percentile(found.end, 99))
	measured["notify_p99_ms"] = p99
	return nil
}

// notified is how long it took until a start was known, to the subscriber and to the informer; how much longer to the one, and the same of ends. In milliseconds.
type notified struct {
	mu                    sync.Mutex
	ours, bare, more, end []float64
}

func (n *notified) rollouts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ours)
}

// once lets a Deployment roll out, and waits until all is known of that.
func (b *notifyBed) once(ctx context.Context, name string, revision int, into *notified) error {
	at, err := b.roll(ctx, name, revision)
	if err != nil {
		return err
	}
	started, over := rolled{name: name, revision: revision}, rolled{name: name, revision: revision, over: true}
	heard, seen, err := b.wait(ctx, started)
	if err != nil {
		return err
	}
	heardOver, seenOver, err := b.wait(ctx, over)
	if err != nil || revision == 2 {
		return err
	}
	into.mu.Lock()
	defer into.mu.Unlock()
	into.ours, into.bare = append(into.ours, milliseconds(heard.Sub(at))), append(into.bare, milliseconds(seen.Sub(at)))
	into.more, into.end = append(into.more, milliseconds(heard.Sub(seen))), append(into.end, milliseconds(heardOver.Sub(seenOver)))
	return nil
}

func newNotifyBed(ctx context.Context, parts *bed) (*notifyBed, error) {
	database, err := parts.postgres(ctx)
	if err != nil {
		return nil, err
	}
	system, err := stack.Start(ctx, stack.Options{DatabaseURL: database.URL(), Workloads: watcher.Workloads{Enabled: true}})
	if err != nil {
		return nil, fmt.Errorf("start the system: %w", err)
	}
	parts.onClose(func(context.Context) error { return system.Stop() })
	cfg, err := clientcmd.BuildConfigFromFlags("", system.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	cfg.QPS = -1
	b := &notifyBed{heard: map[rolled]time.Time{}, seen: map[rolled]time.Time{}, sets: map[rolled]time.Time{}, named: map[rolled]time.Time{}, changed: make(chan struct{})}
	if b.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if err := b.subscribe(ctx, parts, system); err != nil {
		return nil, err
	}
	return b, b.inform(ctx, parts)
}

// subscribe lets an outside tool in, which hears facts live.
func (b *notifyBed) subscribe(ctx context.Context, parts *bed, system *stack.Stack) error {
	api, err := system.Client()
	if err != nil {
		return fmt.Errorf("call the API: %w", err)
	}
	response, err := api.Subscribers.CreateSubscriber(ctx, connect.NewRequest(&statev1.CreateSubscriberRequest{Name: "bench"}))
	if err != nil {
		return fmt.Errorf("make a subscriber: %w", err)
	}
	made := response.Msg
	conn, err := parts.connect(made.GetNatsUrls()[0], nats.UserInfo(made.GetListener(), made.GetToken()), nats.CustomInboxPrefix(made.GetInboxPrefix()))
	if err != nil {
		return err
	}
	if _, err := conn.Subscribe(stack.Cell.All(topology.FamilyDeploy), b.hear); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := conn.FlushTimeout(notifyPatience); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

func (b *notifyBed) hear(m *nats.Msg) {
	at := time.Now()
	var told struct {
		Fact events.DeployFact `json:"customData"` //nolint:tagliatelle // CDEvents' own spelling
	}
	err := json.Unmarshal(m.Data, &told)
	f := &told.Fact
	switch {
	case err != nil:
		b.note(nil, rolled{}, at, fmt.Errorf("a fact on %s: %w", m.Subject, err))
	case f.Rollout != nil && (f.Fact == events.FactStarted || f.Fact == events.FactCompleted):
		b.note(b.heard, rolled{name: f.Workload.Name, revision: f.Rollout.Revision, over: f.Fact == events.FactCompleted}, at, nil)
	}
}

// inform begins the informer, which does no more than look.
func (b *notifyBed) inform(ctx context.Context, parts *bed) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	factory := informers.NewSharedInformerFactoryWithOptions(b.client, 0, informers.WithNamespace(notifyNamespace))
	parts.onClose(func(context.Context) error {
		cancel()
		factory.Shutdown()
		return nil
	})
	sets, deployments := factory.Apps().V1().ReplicaSets().Informer(), factory.Apps().V1().Deployments().Informer()
	for _, handle := range []struct {
		informer cache.SharedIndexInformer
		look     func(object any)
	}{{sets, b.seeSet}, {deployments, b.seeDeployment}} {
		if _, err := handle.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle.look, UpdateFunc: func(_, object any) { handle.look(object) }}); err != nil {
			return fmt.Errorf("begin the informer: %w", err)
		}
	}
	factory.StartWithContext(running)
	if !cache.WaitForCacheSync(ctx.Done(), sets.HasSynced, deployments.HasSynced) {
		return fmt.Errorf("wait for the informer: %w", context.Cause(ctx))
	}
	return nil
}

// seeSet sees one half of what says that a rollout has started.
func (b *notifyBed) seeSet(object any) {
	at := time.Now()
	set, is := object.(*appsv1.ReplicaSet)
	if !is || len(set.OwnerReferences) == 0 {
		return
	}
	if revision, err := strconv.Atoi(set.Annotations[revisionNote]); err == nil {
		b.note(b.sets, rolled{name: set.OwnerReferences[0].Name, revision: revision}, at, nil)
	}
}

// seeDeployment sees the other half, and what says that one is over.
func (b *notifyBed) seeDeployment(object any) {
	at := time.Now()
	d, is := object.(*appsv1.Deployment)
	if !is {
		return
	}
	revision, err := strconv.Atoi(d.Annotations[revisionNote])
	if err != nil {
		return
	}
	b.note(b.named, rolled{name: d.Name, revision: revision}, at, nil)
	wanted, s := *d.Spec.Replicas, d.Status
	if s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == wanted && s.Replicas == wanted && s.AvailableReplicas == wanted {
		b.note(b.seen, rolled{name: d.Name, revision: revision, over: true}, at, nil)
	}
}

// note notes when something was known first.
func (b *notifyBed) note(in map[rolled]time.Time, what rolled, at time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.err = err
	} else if _, known := in[what]; !known {
		in[what] = at
	}
	if set, name := b.sets[what], b.named[what]; !set.IsZero() && !name.IsZero() {
		if b.seen[what] = set; name.After(set) {
			b.seen[what] = name
		}
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// wait until both know, and say since when.
func (b *notifyBed) wait(ctx context.Context, what rolled) (heard, seen time.Time, err error) {
	patience := time.NewTimer(notifyPatience)
	defer patience.Stop()
	for {
		b.mu.Lock()
		heard, seen, err = b.heard[what], b.seen[what], b.err
		changed := b.changed
		b.mu.Unlock()
		if err != nil || !heard.IsZero() && !seen.IsZero() {
			return heard, seen, err
		}
		select {
		case <-changed:
		case <-patience.C:
			return heard, seen, fmt.Errorf("revision %d of %s: nothing came (to the subscriber: %t, to the informer: %t)", what.revision, what.name, heard.IsZero(), seen.IsZero())
		case <-ctx.Done():
			return heard, seen, fmt.Errorf("wait for a fact: %w", context.Cause(ctx))
		}
	}
}

// create makes a Deployment and waits until it is rolled out.
func (b *notifyBed) create(ctx context.Context, name string) error {
	labels := map[string]string{"app": name}
	_, err := b.client.AppsV1().Deployments(notifyNamespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a Deployment: %w", err)
	}
	_, _, err = b.wait(ctx, rolled{name: name, revision: 1, over: true})
	return err
}

// roll changes the template, and says when.
func (b *notifyBed) roll(ctx context.Context, name string, revision int) (time.Time, error) {
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"registry.example/web:%d"}]}}}}`, revision)
	at := time.Now()
	if _, err := b.client.AppsV1().Deployments(notifyNamespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return at, fmt.Errorf("change a Deployment: %w", err)
	}
	return at, nil
}
