package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/stack"
)

// Images of workloads; the cluster's kubelets play what their names say.
const (
	firstImage  = "registry.example/shop:1"
	secondImage = "registry.example/shop:2"
	thirdImage  = "registry.example/shop:3"
	neverImage  = "registry.example/not-ready:1"
	slowImage   = "registry.example/slow-start:6s"
)

// revisionAnnotation is the Deployment controller's.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// shop is one workload alone in a namespace, whose rollouts are followed.
type shop struct {
	*system

	namespace string
	kind      string // as facts say it
}

// open makes the namespace.
func (s *system) open(namespace, kind string) *shop {
	s.t.Helper()
	_, err := s.kube.CoreV1().Namespaces().Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	return &shop{system: s, namespace: namespace, kind: kind}
}

const shopName = "web"

func shopMeta() metav1.ObjectMeta { return metav1.ObjectMeta{Name: shopName} }

func shopSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": shopName}}
}

func shopPods() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": shopName}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: firstImage}}},
	}
}

// shopDeployment opens a shop with a Deployment, whose first rollout it awaits.
func (s *system) shopDeployment(namespace string, replicas int32, configure ...func(*appsv1.DeploymentSpec)) *shop {
	s.t.Helper()
	w := s.open(namespace, "deployment")
	spec := appsv1.DeploymentSpec{Replicas: new(replicas), Selector: shopSelector(), Template: shopPods()}
	for _, c := range configure {
		c(&spec)
	}
	_, err := s.kube.AppsV1().Deployments(namespace).Create(s.t.Context(), &appsv1.Deployment{ObjectMeta: shopMeta(), Spec: spec}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	w.requireFacts("started 1", "completed 1")
	return w
}

// patch is what somebody writes.
func (w *shop) patch(patch string, subresources ...string) {
	w.t.Helper()
	ctx, kind, raw := w.t.Context(), types.StrategicMergePatchType, []byte(patch)
	if len(subresources) > 0 {
		kind = types.MergePatchType
	}
	var err error
	switch w.kind {
	case "deployment":
		_, err = w.kube.AppsV1().Deployments(w.namespace).Patch(ctx, shopName, kind, raw, metav1.PatchOptions{}, subresources...)
	case "statefulset":
		_, err = w.kube.AppsV1().StatefulSets(w.namespace).Patch(ctx, shopName, kind, raw, metav1.PatchOptions{}, subresources...)
	default:
		_, err = w.kube.AppsV1().DaemonSets(w.namespace).Patch(ctx, shopName, kind, raw, metav1.PatchOptions{}, subresources...)
	}
	require.NoError(w.t, err)
}

func (w *shop) image(image string) {
	w.t.Helper()
	w.patch(fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image))
}

func (w *shop) scale(replicas int) {
	w.t.Helper()
	w.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// autoscale changes what an autoscaler changes.
func (w *shop) autoscale(replicas int) {
	w.t.Helper()
	w.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas), "scale")
}

func (w *shop) pause(paused bool) {
	w.t.Helper()
	w.patch(fmt.Sprintf(`{"spec":{"paused":%t}}`, paused))
}

func (w *shop) restart() {
	w.t.Helper()
	w.patch(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-03-02T10:00:00Z"}}}}}`)
}

// sets are the Deployment's ReplicaSets, by revision.
func (w *shop) sets(ctx context.Context) (map[string]appsv1.ReplicaSet, error) {
	list, err := w.kube.AppsV1().ReplicaSets(w.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ReplicaSets: %w", err)
	}
	found := map[string]appsv1.ReplicaSet{}
	for _, set := range list.Items {
		found[set.Annotations[revisionAnnotation]] = set
	}
	return found, nil
}

// undo goes back to a revision, as kubectl rollout undo does.
func (w *shop) undo(revision string) {
	w.t.Helper()
	sets, err := w.sets(w.t.Context())
	require.NoError(w.t, err)
	require.Contains(w.t, sets, revision)
	template := sets[revision].Spec.Template
	delete(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/template", "value": template}})
	require.NoError(w.t, err)
	_, err = w.kube.AppsV1().Deployments(w.namespace).Patch(w.t.Context(), shopName, types.JSONPatchType, patch, metav1.PatchOptions{})
	require.NoError(w.t, err)
}

func (w *shop) remove() {
	w.t.Helper()
	ctx, apps := w.t.Context(), w.kube.AppsV1()
	var err error
	switch w.kind {
	case "deployment":
		err = apps.Deployments(w.namespace).Delete(ctx, shopName, metav1.DeleteOptions{})
	case "statefulset":
		err = apps.StatefulSets(w.namespace).Delete(ctx, shopName, metav1.DeleteOptions{})
	default:
		err = apps.DaemonSets(w.namespace).Delete(ctx, shopName, metav1.DeleteOptions{})
	}
	require.NoError(w.t, err)
}

// facts are those that were told of the workload.
func (w *shop) facts() []events.DeployFact {
	w.t.Helper()
	return w.factsOn(topology.FamilyDeploy + ".*." + w.namespace + "." + w.kind + "." + shopName + ".*")
}

// allFacts are those that were told of anything.
func (s *system) allFacts() []events.DeployFact {
	s.t.Helper()
	return s.factsOn(topology.FamilyDeploy + ".>")
}

func (s *system) factsOn(filter string) []events.DeployFact {
	s.t.Helper()
	var facts []events.DeployFact
	err := replay.Run(s.t.Context(), s.js, stack.Cell, replay.Options{Subject: filter}, func(msg jetstream.Msg, _ *jetstream.MsgMetadata) error {
		e, err := event.Decode(msg.Headers(), msg.Data())
		if err != nil {
			return fmt.Errorf("%s: %w", msg.Subject(), err)
		}
		fact, err := cdevent.Read(e)
		if err != nil {
			return fmt.Errorf("%s: %w", msg.Subject(), err)
		}
		facts = append(facts, fact)
		return nil
	})
	require.NoError(s.t, err)
	return facts
}

// said are the facts that were told of the workload, without those that only count.
func (w *shop) said() []string {
	w.t.Helper()
	said := []string{}
	for _, fact := range w.facts() {
		if fact.Fact != events.FactProgressed && fact.Fact != events.FactDrained {
			said = append(said, sayFact(fact))
		}
	}
	return said
}

func sayFact(f events.DeployFact) string {
	switch {
	case f.Partition != nil:
		return fmt.Sprintf("%s %d at %d", f.Fact, f.Rollout.Revision, *f.Partition)
	case f.Fact == events.FactRolledBack:
		return fmt.Sprintf("%s %d to %d", f.Fact, f.Rollout.Revision, f.Rollout.OfRevision)
	case f.Rollout != nil:
		return fmt.Sprintf("%s %d", f.Fact, f.Rollout.Revision)
	case f.Scale != nil:
		return fmt.Sprintf("%s %d→%d", f.Fact, f.Scale.From, f.Scale.To)
	case f.Gap != nil:
		return fmt.Sprintf("%s %v", f.Fact, f.Gap.Revisions)
	default:
		return string(f.Fact)
	}
}

// requireFacts waits until these have been told of the workload since it is there, and nothing else.
func (w *shop) requireFacts(want ...string) {
	w.t.Helper()
	var said []string
	require.Eventually(w.t, func() bool {
		said = w.said()
		return len(said) >= len(want)
	}, patience, clusterTick, "%s: wanted %v", w.namespace, want)
	require.Equal(w.t, want, said, w.namespace)
}

// awaitRevision waits until the cluster has a ReplicaSet of it.
func (w *shop) awaitRevision(revision string) {
	w.t.Helper()
	awaitCluster(w.t, "revision "+revision, func(ctx context.Context) (bool, error) {
		sets, err := w.sets(ctx)
		_, there := sets[revision]
		return there, err
	})
}
