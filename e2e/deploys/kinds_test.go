package deploys_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
)

// newStatefulSet creates a StatefulSet of three pods and waits for its first rollout.
func newStatefulSet(s *fixture.System, namespace string, strategy appsv1.StatefulSetUpdateStrategy) *fixture.Workload {
	s.T.Helper()
	w := s.NewWorkload(namespace, "statefulset")
	_, err := s.Kube.AppsV1().StatefulSets(namespace).Create(s.T.Context(), &appsv1.StatefulSet{
		ObjectMeta: fixture.WorkloadMeta(),
		Spec: appsv1.StatefulSetSpec{
			Replicas:       new(int32(3)),
			Selector:       fixture.WorkloadSelector(),
			Template:       fixture.WorkloadPods(),
			UpdateStrategy: strategy,
		},
	}, metav1.CreateOptions{})
	require.NoError(s.T, err)
	w.RequireFacts("started 1", "completed 1")
	return w
}

func TestKindsStatefulSetPartitions(t *testing.T) {
	s := shared.Parallel(t)
	w := newStatefulSet(s, "partitions",
		appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType})
	w.Patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`)
	w.SetImage(fixture.SecondImage)
	facts := []string{"started 1", "completed 1", "started 2", "partition_reached 2 at 2"}
	w.RequireFacts(facts...)
	w.Patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}}}`)
	facts = append(facts, "partition_reached 2 at 1")
	w.RequireFacts(facts...)
	w.Patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	facts = append(facts, "completed 2")
	w.RequireFacts(facts...)
	w.SetImage(fixture.FirstImage)
	w.RequireFacts(append(facts, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func TestKindsStatefulSetOnDelete(t *testing.T) {
	s := shared.Parallel(t)
	w := newStatefulSet(s, "on-delete", appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType})
	w.SetImage(fixture.SecondImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	err := s.Kube.CoreV1().Pods(w.Namespace).DeleteCollection(s.T.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	require.NoError(s.T, err)
	w.RequireFacts(append(facts, "completed 2")...)
}

// newDaemonSet creates a DaemonSet on every node and waits for its first rollout.
func newDaemonSet(s *fixture.System, namespace string) *fixture.Workload {
	s.T.Helper()
	w := s.NewWorkload(namespace, "daemonset")
	_, err := s.Kube.AppsV1().DaemonSets(namespace).Create(s.T.Context(), &appsv1.DaemonSet{
		ObjectMeta: fixture.WorkloadMeta(),
		Spec:       appsv1.DaemonSetSpec{Selector: fixture.WorkloadSelector(), Template: fixture.WorkloadPods()},
	}, metav1.CreateOptions{})
	require.NoError(s.T, err)
	w.RequireFacts("started 1", "completed 1")
	return w
}

func TestKindsDaemonSet(t *testing.T) {
	s := shared.Parallel(t)
	w := newDaemonSet(s, "daemons")
	w.SetImage(fixture.SecondImage)
	facts := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.RequireFacts(facts...)
	w.SetImage(fixture.FirstImage)
	w.RequireFacts(append(facts, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

// TestKindsSameFacts checks that StatefulSets and DaemonSets give the facts that Deployments give.
func TestKindsSameFacts(t *testing.T) {
	s := shared.Parallel(t)
	rolls := appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType}
	for _, w := range []*fixture.Workload{newStatefulSet(s, "stateful-life", rolls), newDaemonSet(s, "daemonic-life")} {
		w.Restart()
		facts := []string{"started 1", "completed 1", "started 2", "restarted 2", "completed 2"}
		w.RequireFacts(facts...)
		if w.Kind == "statefulset" {
			w.Scale(4)
			facts = append(facts, "scale_started 3→4", "scale_completed 3→4")
			w.RequireFacts(facts...)
			w.Scale(1)
			facts = append(facts, "scale_started 4→1", "scale_completed 4→1")
			w.RequireFacts(facts...)
		}
		w.SetImage(fixture.NeverReadyImage)
		facts = append(facts, "started 3")
		w.RequireFacts(facts...)
		w.Delete()
		w.RequireFacts(append(facts, "cancelled 3")...)
	}
	for _, w := range []*fixture.Workload{newStatefulSet(s, "stateful-end", rolls), newDaemonSet(s, "daemonic-end")} {
		w.Delete()
		w.RequireFacts("started 1", "completed 1", "removed")
	}
}

// TestKindsAddedNodeIsNoRollout adds nodes while a DaemonSet is idle and while it rolls out.
func TestKindsAddedNodeIsNoRollout(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewWorkload("daemons-and-nodes", "daemonset")
	// Other tests have nodes too: a node selector keeps these pods on the nodes of this test.
	pods := fixture.WorkloadPods()
	pods.Spec.NodeSelector = map[string]string{"pool": w.Namespace}
	addNode(w, 1)
	_, err := s.Kube.AppsV1().DaemonSets(w.Namespace).Create(s.T.Context(), &appsv1.DaemonSet{
		ObjectMeta: fixture.WorkloadMeta(), Spec: appsv1.DaemonSetSpec{Selector: fixture.WorkloadSelector(), Template: pods},
	}, metav1.CreateOptions{})
	require.NoError(s.T, err)
	facts := []string{"started 1", "completed 1"}
	w.RequireFacts(facts...)
	addNode(w, 2)
	awaitNodes(w, 2, 2)
	w.SetImage(fixture.SecondImage)
	facts = append(facts, "started 2", "completed 2")
	w.RequireFacts(facts...)
	w.SetImage(fixture.NeverReadyImage)
	facts = append(facts, "started 3")
	w.RequireFacts(facts...)
	addNode(w, 3)
	awaitNodes(w, 3, 1)
	w.SetImage(fixture.ThirdImage)
	w.RequireFacts(append(facts, "superseded 3", "started 4", "completed 4")...)
}

// addNode adds a simulated node.
func addNode(w *fixture.Workload, i int) {
	w.T.Helper()
	name := fmt.Sprintf("%s-%d", w.Namespace, i)
	labels := map[string]string{
		corev1.LabelHostname: name, "pool": w.Namespace, "kubelab.lockstep.dev/kubelet": "running",
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err := w.Kube.CoreV1().Nodes().Create(w.T.Context(), node, metav1.CreateOptions{})
	require.NoError(w.T, err)
}

// awaitNodes waits until the given numbers of nodes have a pod and an available pod of the
// DaemonSet.
func awaitNodes(w *fixture.Workload, scheduled, available int32) {
	w.T.Helper()
	fixture.AwaitCluster(w.T, "a pod on each node", func(ctx context.Context) (bool, error) {
		o, err := w.Kube.AppsV1().DaemonSets(w.Namespace).Get(ctx, fixture.WorkloadName, metav1.GetOptions{})
		return err == nil && o.Status.CurrentNumberScheduled == scheduled && o.Status.NumberAvailable == available, err
	})
}
