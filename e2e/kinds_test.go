package e2e_test

import (
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shopStatefulSet opens a shop with a StatefulSet of three pods.
func (s *system) shopStatefulSet(namespace string, strategy appsv1.StatefulSetUpdateStrategy) *shop {
	s.t.Helper()
	w := s.open(namespace, "statefulset")
	_, err := s.kube.AppsV1().StatefulSets(namespace).Create(s.t.Context(), &appsv1.StatefulSet{ObjectMeta: shopMeta(), Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(3)), Selector: shopSelector(), Template: shopPods(), UpdateStrategy: strategy,
	}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	w.requireFacts("started 1", "completed 1")
	return w
}

func partitionsInSteps(s *system) {
	w := s.shopStatefulSet("partitions", appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType})
	w.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`)
	w.image(secondImage)
	told := []string{"started 1", "completed 1", "started 2", "partition_reached 2 at 2"}
	w.requireFacts(told...)
	w.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}}}`)
	told = append(told, "partition_reached 2 at 1")
	w.requireFacts(told...)
	w.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	told = append(told, "completed 2")
	w.requireFacts(told...)
	w.image(firstImage)
	w.requireFacts(append(told, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func onDelete(s *system) {
	w := s.shopStatefulSet("on-delete", appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType})
	w.image(secondImage)
	told := []string{"started 1", "completed 1", "started 2"}
	w.requireFacts(told...)
	err := s.kube.CoreV1().Pods(w.namespace).DeleteCollection(s.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	require.NoError(s.t, err)
	w.requireFacts(append(told, "completed 2")...)
}

// shopDaemonSet opens a shop with a DaemonSet on every node.
func (s *system) shopDaemonSet(namespace string) *shop {
	s.t.Helper()
	w := s.open(namespace, "daemonset")
	_, err := s.kube.AppsV1().DaemonSets(namespace).Create(s.t.Context(), &appsv1.DaemonSet{ObjectMeta: shopMeta(), Spec: appsv1.DaemonSetSpec{
		Selector: shopSelector(), Template: shopPods(),
	}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	w.requireFacts("started 1", "completed 1")
	return w
}

func daemonSetRolls(s *system) {
	w := s.shopDaemonSet("daemons")
	w.image(secondImage)
	told := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.requireFacts(told...)
	w.image(firstImage)
	w.requireFacts(append(told, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

// othersLikewise: what holds for Deployments holds for the other kinds.
func othersLikewise(s *system) {
	rolls := appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType}
	for _, w := range []*shop{s.shopStatefulSet("stateful-life", rolls), s.shopDaemonSet("daemonic-life")} {
		w.restart()
		told := []string{"started 1", "completed 1", "started 2", "restarted 2", "completed 2"}
		w.requireFacts(told...)
		if w.kind == "statefulset" {
			w.scale(4)
			told = append(told, "scale_started 3→4", "scale_completed 3→4")
			w.requireFacts(told...)
			w.scale(1)
			told = append(told, "scale_started 4→1", "scale_completed 4→1")
			w.requireFacts(told...)
		}
		w.image(neverImage)
		told = append(told, "started 3")
		w.requireFacts(told...)
		w.remove()
		w.requireFacts(append(told, "cancelled 3")...)
	}
	for _, w := range []*shop{s.shopStatefulSet("stateful-end", rolls), s.shopDaemonSet("daemonic-end")} {
		w.remove()
		w.requireFacts("started 1", "completed 1", "removed")
	}
}
