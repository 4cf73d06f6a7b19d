package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

const (
	notifyDeployments = 12
	// notifyPause is the least time between two changes.
	notifyPause = 100 * time.Millisecond
	// notifyRollouts is the minimum number of rollouts for a 99th percentile.
	notifyRollouts  = 400
	notifyNamespace = "default"
	notifyTimeout   = time.Minute
)

// Who learns of a rollout.
const (
	bySubscriber = "subscriber"
	byInformer   = "informer"
)

// learned is that somebody knows a fact about the rollout of a revision of a Deployment.
type learned struct {
	by, name string
	revision int
	fact     events.Fact
}

// notifyFixture is a whole system with a subscriber, and an informer of client-go.
type notifyFixture struct {
	*timeline[learned]

	client kubernetes.Interface
}

// measureNotify changes pod templates of Deployments. It measures until an outside subscriber has
// the fact that the rollout started, beside an informer that has the Deployment with the new revision.
func measureNotify(ctx context.Context, f *fixture, size Size, measured Measured) {
	n := newNotifyFixture(ctx, f)
	names := make([]string, size.of(notifyDeployments))
	for i := range names {
		names[i] = fmt.Sprintf("web-%d", i)
		n.create(ctx, names[i])
	}
	var subscriber, informer, delays []float64
	pace := time.NewTicker(notifyPause)
	defer pace.Stop()
	began := time.Now()
	for i := 0; len(delays) < size.of(notifyRollouts) || time.Since(began) < size.For; i++ {
		<-pace.C
		name, revision := names[i%len(names)], 2+i/len(names)
		n.wait(ctx, learned{bySubscriber, name, revision - 1, events.FactCompleted})
		patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"revision":"%d"}}}}}`, revision)
		changed := time.Now()
		must(n.client.AppsV1().Deployments(notifyNamespace).
			Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))
		bySubscriber := n.wait(ctx, learned{bySubscriber, name, revision, events.FactStarted})
		byInformer := n.wait(ctx, learned{byInformer, name, revision, events.FactStarted})
		if revision > 2 { // the first round makes connections
			subscriber = append(subscriber, milliseconds(bySubscriber.Sub(changed)))
			informer = append(informer, milliseconds(byInformer.Sub(changed)))
			delays = append(delays, milliseconds(bySubscriber.Sub(byInformer)))
		}
	}
	measured["notify_p50_ms"] = beside(median(subscriber), median(informer))
	p99 := beside(percentile(subscriber, 99), percentile(informer, 99))
	p99.Note = fmt.Sprintf("%d rollouts; after the informer: p50 %.1f, p99 %.1f ms",
		len(delays), median(delays), percentile(delays, 99))
	measured["notify_p99_ms"] = p99
}

func newNotifyFixture(ctx context.Context, f *fixture) *notifyFixture {
	system := f.system(ctx, stack.Options{DatabaseURL: f.postgres(ctx), Workloads: watcher.Workloads{Enabled: true}})
	n := &notifyFixture{newTimeline[learned](), must(newTypedClient(system.Kubeconfig()))}
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
		if err := json.Unmarshal(m.Data, &e); err != nil {
			n.add(learned{}, at, fmt.Errorf("a fact on %s: %w", m.Subject, err))
		} else if e.Fact.Rollout != nil {
			n.add(learned{bySubscriber, e.Fact.Workload.Name, e.Fact.Rollout.Revision, e.Fact.Fact}, at, nil)
		}
	}))
	check(conn.FlushTimeout(notifyTimeout))
}

func (n *notifyFixture) startInformer(ctx context.Context, f *fixture) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(notifyNamespace))
	f.onEnd(factory.Shutdown)
	f.onEnd(cancel)
	informer := factory.Apps().V1().Deployments().Informer()
	onDeployment := func(object any) {
		at := time.Now()
		d, is := object.(*appsv1.Deployment)
		if !is {
			return
		}
		if revision, err := strconv.Atoi(d.Annotations["deployment.kubernetes.io/revision"]); err == nil {
			n.add(learned{byInformer, d.Name, revision, events.FactStarted}, at, nil)
		}
	}
	must(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: onDeployment, UpdateFunc: func(_, object any) { onDeployment(object) },
	}))
	factory.StartWithContext(running)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		check(errors.Join(errors.New("wait for the informer"), context.Cause(ctx)))
	}
}

// wait waits until it is learned and returns the time.
func (n *notifyFixture) wait(ctx context.Context, l learned) time.Time {
	ctx, cancel := context.WithTimeoutCause(ctx, notifyTimeout, fmt.Errorf("timeout of %v", l))
	defer cancel()
	return n.first(ctx, func(known learned) bool { return known == l })
}

func (n *notifyFixture) create(ctx context.Context, name string) {
	labels := map[string]string{"app": name}
	must(n.client.AppsV1().Deployments(notifyNamespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
			},
		},
	}, metav1.CreateOptions{}))
}
