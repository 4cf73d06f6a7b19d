package main

import (
	"context"
	"encoding/json"
	"errors"
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
	notifyDeployments = 12
	// notifyLanes is the number of concurrent rollouts: a rollout takes a quarter of a second, mostly
	// in the cluster.
	notifyLanes = 3
	// notifyPause is the time between two changes.
	notifyPause = 100 * time.Millisecond
	// notifyRollouts is the minimum number of rollouts for a 99th percentile.
	notifyRollouts     = 400
	notifyNamespace    = "default"
	notifyTimeout      = time.Minute
	revisionAnnotation = "deployment.kubernetes.io/revision"
)

// notifyFixture is a whole system with a subscriber, and an informer of client-go.
type notifyFixture struct {
	client kubernetes.Interface

	mu sync.Mutex
	// The first time at which each was known, by rollout. A rollout has started for the informer
	// when the ReplicaSet exists and the Deployment names its revision.
	subscriber, informer, replicaSets, named map[rollout]time.Time
	changed                                  chan struct{}
	err                                      error
}

// rollout is a revision of a Deployment.
type rollout struct {
	name     string
	revision int
	// ended means the end of the rollout instead of its start.
	ended bool
}

// latencies are in milliseconds after the change, and after the informer.
type latencies struct {
	mu                   sync.Mutex
	subscriber, informer []float64
	startDelay, endDelay []float64
}

func (l *latencies) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.subscriber)
}

// measureNotify changes pod templates of Deployments. It measures until an outside subscriber has
// the fact that the rollout started, beside an informer that has the objects.
func measureNotify(ctx context.Context, f *fixture, size Size, measured Measured) {
	n := newNotifyFixture(ctx, f)
	names := make([]string, size.of(notifyDeployments))
	for i := range names {
		names[i] = fmt.Sprintf("web-%d", i)
		check(n.create(ctx, names[i]))
	}
	var l latencies
	began := time.Now()
	enough := func() bool { return l.count() >= size.of(notifyRollouts) && time.Since(began) >= size.For }
	pace := time.NewTicker(notifyPause)
	defer pace.Stop()
	lanes, ctx := errgroup.WithContext(ctx)
	for own := range slices.Chunk(names, (len(names)+notifyLanes-1)/notifyLanes) {
		lanes.Go(func() error {
			// The first round, which makes connections, is not counted.
			for revision := 2; revision < 2+leastTurns || !enough(); revision++ {
				for _, name := range own {
					<-pace.C
					if err := n.rollOut(ctx, name, revision, &l); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	check(lanes.Wait())
	measured["notify_p50_ms"] = beside(median(l.subscriber), median(l.informer))
	p99 := beside(percentile(l.subscriber, 99), percentile(l.informer, 99))
	p99.Note = fmt.Sprintf("%d rollouts; after the informer: start p50 %.1f p99 %.1f ms, end p50 %.1f p99 %.1f ms",
		l.count(), median(l.startDelay), percentile(l.startDelay, 99), median(l.endDelay), percentile(l.endDelay, 99))
	measured["notify_p99_ms"] = p99
}

// rollOut changes a Deployment and waits for the start and the end of the rollout.
func (n *notifyFixture) rollOut(ctx context.Context, name string, revision int, l *latencies) error {
	image := fmt.Sprintf("registry.example/web:%d", revision)
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"` + image + `"}]}}}}`
	began := time.Now()
	_, err := n.client.AppsV1().Deployments(notifyNamespace).
		Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change a Deployment: %w", err)
	}
	subscriber, informer, err := n.wait(ctx, rollout{name: name, revision: revision})
	if err != nil {
		return err
	}
	subscriberEnd, informerEnd, err := n.wait(ctx, rollout{name: name, revision: revision, ended: true})
	if err != nil || revision == 2 {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscriber = append(l.subscriber, milliseconds(subscriber.Sub(began)))
	l.informer = append(l.informer, milliseconds(informer.Sub(began)))
	l.startDelay = append(l.startDelay, milliseconds(subscriber.Sub(informer)))
	l.endDelay = append(l.endDelay, milliseconds(subscriberEnd.Sub(informerEnd)))
	return nil
}

func newNotifyFixture(ctx context.Context, f *fixture) *notifyFixture {
	system := must(stack.Start(ctx, stack.Options{
		DatabaseURL: f.postgres(ctx), Workloads: watcher.Workloads{Enabled: true},
	}))
	f.onClose(func(context.Context) error { return system.Stop() })
	cfg := must(clientcmd.BuildConfigFromFlags("", system.Kubeconfig()))
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.QPS = -1
	n := &notifyFixture{
		client: must(kubernetes.NewForConfig(cfg)), subscriber: map[rollout]time.Time{},
		informer:    map[rollout]time.Time{},
		replicaSets: map[rollout]time.Time{}, named: map[rollout]time.Time{}, changed: make(chan struct{}),
	}
	n.subscribe(ctx, f, system)
	n.startInformer(ctx, f)
	return n
}

// subscribe subscribes to live facts with the credentials of an outside tool.
func (n *notifyFixture) subscribe(ctx context.Context, f *fixture, system *stack.Stack) {
	request := connect.NewRequest(&statev1.CreateSubscriberRequest{Name: "bench"})
	s := must(must(system.Client()).Subscribers.CreateSubscriber(ctx, request)).Msg
	conn := f.connect(s.GetNatsUrls()[0],
		nats.UserInfo(s.GetListener(), s.GetToken()), nats.CustomInboxPrefix(s.GetInboxPrefix()))
	must(conn.Subscribe(stack.Cell.All(topology.FamilyDeploy), func(m *nats.Msg) {
		at := time.Now()
		var e struct {
			Fact events.DeployFact `json:"customData"` //nolint:tagliatelle // CDEvents' own spelling
		}
		err := json.Unmarshal(m.Data, &e)
		fact := &e.Fact
		switch {
		case err != nil:
			n.record(nil, rollout{}, at, fmt.Errorf("a fact on %s: %w", m.Subject, err))
		case fact.Rollout != nil && (fact.Fact == events.FactStarted || fact.Fact == events.FactCompleted):
			r := rollout{fact.Workload.Name, fact.Rollout.Revision, fact.Fact == events.FactCompleted}
			n.record(n.subscriber, r, at, nil)
		}
	}))
	check(conn.FlushTimeout(notifyTimeout))
}

func (n *notifyFixture) startInformer(ctx context.Context, f *fixture) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(notifyNamespace))
	f.onClose(func(context.Context) error {
		cancel()
		factory.Shutdown()
		return nil
	})
	replicaSets := factory.Apps().V1().ReplicaSets().Informer()
	deployments := factory.Apps().V1().Deployments().Informer()
	handler := func(fn func(object any)) cache.ResourceEventHandlerFuncs {
		return cache.ResourceEventHandlerFuncs{AddFunc: fn, UpdateFunc: func(_, object any) { fn(object) }}
	}
	must(replicaSets.AddEventHandler(handler(n.onReplicaSet)))
	must(deployments.AddEventHandler(handler(n.onDeployment)))
	factory.StartWithContext(running)
	if !cache.WaitForCacheSync(ctx.Done(), replicaSets.HasSynced, deployments.HasSynced) {
		check(errors.Join(errors.New("wait for the informer"), context.Cause(ctx)))
	}
}

func (n *notifyFixture) onReplicaSet(object any) {
	at := time.Now()
	set, is := object.(*appsv1.ReplicaSet)
	if !is || len(set.OwnerReferences) == 0 {
		return
	}
	if revision, err := strconv.Atoi(set.Annotations[revisionAnnotation]); err == nil {
		n.record(n.replicaSets, rollout{name: set.OwnerReferences[0].Name, revision: revision}, at, nil)
	}
}

func (n *notifyFixture) onDeployment(object any) {
	at := time.Now()
	d, is := object.(*appsv1.Deployment)
	if !is {
		return
	}
	revision, err := strconv.Atoi(d.Annotations[revisionAnnotation])
	if err != nil {
		return
	}
	n.record(n.named, rollout{name: d.Name, revision: revision}, at, nil)
	wanted, s := *d.Spec.Replicas, d.Status
	isComplete := s.UpdatedReplicas == wanted && s.Replicas == wanted && s.AvailableReplicas == wanted
	if s.ObservedGeneration >= d.Generation && isComplete {
		n.record(n.informer, rollout{name: d.Name, revision: revision, ended: true}, at, nil)
	}
}

// record records the first time of a rollout.
func (n *notifyFixture) record(in map[rollout]time.Time, r rollout, at time.Time, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.err = err
	} else if _, known := in[r]; !known {
		in[r] = at
	}
	if set, named := n.replicaSets[r], n.named[r]; !set.IsZero() && !named.IsZero() {
		if n.informer[r] = set; named.After(set) {
			n.informer[r] = named
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// wait waits until the subscriber and the informer know a rollout.
func (n *notifyFixture) wait(ctx context.Context, r rollout) (subscriber, informer time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, notifyTimeout, errors.New("timeout"))
	defer cancel()
	for {
		n.mu.Lock()
		subscriber, informer, err = n.subscriber[r], n.informer[r], n.err
		changed := n.changed
		n.mu.Unlock()
		if err != nil || !subscriber.IsZero() && !informer.IsZero() {
			return subscriber, informer, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return subscriber, informer, fmt.Errorf("wait for revision %d of %s (subscriber %t, informer %t): %w",
				r.revision, r.name, !subscriber.IsZero(), !informer.IsZero(), context.Cause(ctx))
		}
	}
}

// create creates a Deployment and waits until it is rolled out.
func (n *notifyFixture) create(ctx context.Context, name string) error {
	labels := map[string]string{"app": name}
	_, err := n.client.AppsV1().Deployments(notifyNamespace).Create(ctx, &appsv1.Deployment{
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
	_, _, err = n.wait(ctx, rollout{name: name, revision: 1, ended: true})
	return err
}
