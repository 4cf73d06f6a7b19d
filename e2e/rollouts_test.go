package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestRollouts has a cluster's workloads do what they do, each in a namespace of its own, and compares what is told of them, whole and in order.
func TestRollouts(t *testing.T) {
	t.Parallel()
	s := startWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: func(service string, config any) {
		if service == stack.Watcher {
			config.(*watcher.Config).TickInterval = time.Second
		}
	}})
	s.together(
		promise{"the last event is a new pod", lastEventIsANewPod},
		promise{"the last event is an old pod", lastEventIsAnOldPod},
		promise{"all at once", allPodsAtOnce},
		promise{"Recreate", recreates},
		promise{"scaling is no deploy", scalingIsNoDeploy},
		promise{"scaling in flight", scalingInFlight},
		promise{"an edit of what is paused starts when it is resumed", pausedEditStartsOnResume},
		promise{"paused in flight", pausedInFlight},
		promise{"undo", undoIsARollback},
		promise{"undo without pods", undoWithoutPods},
		promise{"superseded twice", supersededTwice},
		promise{"taken back before it was complete", takenBackInFlight},
		promise{"the deadline passes", deadlinePasses},
		promise{"blocked by a quota", blockedByAQuota},
		promise{"a ReplicaSet deleted by hand is nobody's deploy", replicaSetDeletedByHand},
		promise{"rollout restart", rolloutRestart},
		promise{"deleted in flight", deletedInFlight},
		promise{"deleted and made anew", deletedAndMadeAnew},
		promise{"a StatefulSet by partitions", partitionsInSteps},
		promise{"a StatefulSet OnDelete", onDelete},
		promise{"a DaemonSet", daemonSetRolls},
		promise{"a node that comes is no deploy", nodeAddedIsNoDeploy},
	)
	s.inTurn(
		promise{"full resyncs are silent", fullResyncsAreSilent},
		promise{"the history is sound", requireSoundFacts},
	)
}

// requireSoundFacts reads everything that was told of rollouts.
func requireSoundFacts(s *system) {
	s.t.Helper()
	require.Empty(s.t, history.Facts(stack.Cell, told(s.records(topology.FamilyDeploy))))
	require.Empty(s.t, s.records(topology.FamilyDead), "no service met a message that it could not process")
}

func rolling(surge, unavailable intstr.IntOrString) func(*appsv1.DeploymentSpec) {
	return func(spec *appsv1.DeploymentSpec) {
		spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
		}
	}
}

func lastEventIsANewPod(s *system) {
	w := s.shopDeployment("new-pod-last", 3, rolling(intstr.FromInt32(0), intstr.FromInt32(1)))
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
}

func lastEventIsAnOldPod(s *system) {
	w := s.shopDeployment("old-pod-last", 3, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
}

func allPodsAtOnce(s *system) {
	w := s.shopDeployment("all-at-once", 4, rolling(intstr.FromString("100%"), intstr.FromString("100%")))
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
}

func recreates(s *system) {
	w := s.shopDeployment("recreates", 2, func(spec *appsv1.DeploymentSpec) { spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
}

func scalingIsNoDeploy(s *system) {
	w := s.shopDeployment("scales", 1)
	w.scale(3)
	told := []string{"started 1", "completed 1", "scale_started 1→3", "scale_completed 1→3"}
	w.requireFacts(told...)
	w.autoscale(2)
	told = append(told, "scale_started 3→2", "scale_completed 3→2")
	w.requireFacts(told...)
	w.scale(0)
	w.requireFacts(append(told, "scale_started 2→0", "scale_completed 2→0")...)
}

func scalingInFlight(s *system) {
	// No old pod counts for the scaling: so both end with the same event.
	w := s.shopDeployment("scales-in-flight", 2, rolling(intstr.FromInt32(0), intstr.FromString("100%")))
	w.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	w.requireFacts(told...)
	w.autoscale(4)
	told = append(told, "scale_started 2→4")
	w.requireFacts(told...)
	w.image(thirdImage)
	w.requireFacts(append(told, "superseded 2", "started 3", "completed 3", "scale_completed 2→4")...)
}

func pausedEditStartsOnResume(s *system) {
	w := s.shopDeployment("paused", 2)
	told := []string{"started 1", "completed 1"}
	w.pause(true)
	w.image(secondImage)
	awaitCluster(s.t, "the edit is seen", func(ctx context.Context) (bool, error) {
		d, err := w.kube.AppsV1().Deployments(w.namespace).Get(ctx, shopName, metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation, err
	})
	w.requireFacts(told...)
	w.pause(false)
	w.requireFacts(append(told, "started 2", "completed 2")...)
}

func pausedInFlight(s *system) {
	w := s.shopDeployment("paused-in-flight", 2)
	w.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	w.requireFacts(told...)
	w.pause(true)
	told = append(told, "paused 2")
	w.requireFacts(told...)
	w.pause(false)
	told = append(told, "resumed 2")
	w.requireFacts(told...)
	w.image(thirdImage)
	w.requireFacts(append(told, "superseded 2", "started 3", "completed 3")...)
}

func undoIsARollback(s *system) {
	w := s.shopDeployment("undone", 2)
	told := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.image(secondImage)
	w.requireFacts(told...)
	w.undo("1")
	told = append(told, "started 3", "rolled_back 3 to 1", "completed 3")
	w.requireFacts(told...)
	w.image(thirdImage)
	told = append(told, "started 4", "completed 4")
	w.requireFacts(told...)
	w.undo("2")
	w.requireFacts(append(told, "started 5", "rolled_back 5 to 2", "completed 5")...)
}

func undoWithoutPods(s *system) {
	w := s.shopDeployment("undone-at-zero", 1)
	told := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.image(secondImage)
	w.requireFacts(told...)
	w.scale(0)
	told = append(told, "scale_started 1→0", "scale_completed 1→0")
	w.requireFacts(told...)
	w.undo("1")
	w.requireFacts(append(told, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func supersededTwice(s *system) {
	w := s.shopDeployment("superseded", 2)
	w.image(neverImage)
	w.awaitRevision("2")
	w.image("registry.example/not-ready:2")
	w.awaitRevision("3")
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "superseded 2", "started 3", "superseded 3", "started 4", "completed 4")
}

func takenBackInFlight(s *system) {
	w := s.shopDeployment("taken-back", 2)
	w.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	w.requireFacts(told...)
	w.undo("1")
	w.requireFacts(append(told, "cancelled 2", "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func deadlinePasses(s *system) {
	w := s.shopDeployment("late", 1, func(spec *appsv1.DeploymentSpec) { spec.ProgressDeadlineSeconds = new(int32(2)) })
	w.image(slowImage)
	w.requireFacts("started 1", "completed 1", "started 2", "stalled 2", "recovered 2", "completed 2")
}

func blockedByAQuota(s *system) {
	w := s.shopDeployment("blocked", 2, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	quotas := s.kube.CoreV1().ResourceQuotas(w.namespace)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")},
	}}
	_, err := quotas.Create(s.t.Context(), quota, metav1.CreateOptions{})
	require.NoError(s.t, err)
	awaitCluster(s.t, "the quota holds", func(ctx context.Context) (bool, error) {
		q, err := quotas.Get(ctx, "few", metav1.GetOptions{})
		return err == nil && q.Status.Used.Pods().Value() == 2, err
	})
	w.image(secondImage)
	told := []string{"started 1", "completed 1", "started 2", "blocked 2"}
	w.requireFacts(told...)
	require.NoError(s.t, quotas.Delete(s.t.Context(), "few", metav1.DeleteOptions{}))
	w.requireFacts(append(told, "unblocked 2", "completed 2")...)
}

func replicaSetDeletedByHand(s *system) {
	w := s.shopDeployment("by-hand", 2)
	before, err := w.sets(s.t.Context())
	require.NoError(s.t, err)
	require.NoError(s.t, s.kube.AppsV1().ReplicaSets(w.namespace).Delete(s.t.Context(), before["1"].Name, metav1.DeleteOptions{}))
	awaitCluster(s.t, "another ReplicaSet", func(ctx context.Context) (bool, error) {
		sets, err := w.sets(ctx)
		set := sets["1"]
		return set.UID != "" && set.UID != before["1"].UID && set.Status.AvailableReplicas == 2, err
	})
	w.scale(3)
	w.requireFacts("started 1", "completed 1", "scale_started 2→3", "scale_completed 2→3")
}

func rolloutRestart(s *system) {
	w := s.shopDeployment("restarted", 2)
	w.restart()
	w.requireFacts("started 1", "completed 1", "started 2", "restarted 2", "completed 2")
}

func deletedInFlight(s *system) {
	w := s.shopDeployment("deleted-in-flight", 2)
	w.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	w.requireFacts(told...)
	w.remove()
	w.requireFacts(append(told, "cancelled 2")...)
}

func deletedAndMadeAnew(s *system) {
	w := s.shopDeployment("made-anew", 1)
	w.remove()
	told := []string{"started 1", "completed 1", "removed"}
	w.requireFacts(told...)
	_, err := s.kube.AppsV1().Deployments(w.namespace).Create(s.t.Context(), &appsv1.Deployment{
		ObjectMeta: shopMeta(), Spec: appsv1.DeploymentSpec{Selector: shopSelector(), Template: shopPods()},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	w.requireFacts(append(told, "started 1", "completed 1")...)
}

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

func daemonSetRolls(s *system) {
	w := s.open("daemons", "daemonset")
	_, err := s.kube.AppsV1().DaemonSets(w.namespace).Create(s.t.Context(), &appsv1.DaemonSet{ObjectMeta: shopMeta(), Spec: appsv1.DaemonSetSpec{
		Selector: shopSelector(), Template: shopPods(),
	}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	told := []string{"started 1", "completed 1"}
	w.requireFacts(told...)
	w.image(secondImage)
	told = append(told, "started 2", "completed 2")
	w.requireFacts(told...)
	w.image(firstImage)
	w.requireFacts(append(told, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func fullResyncsAreSilent(s *system) {
	idle, flying := s.shopDeployment("resynced-idle", 1), s.shopDeployment("resynced-in-flight", 1)
	flying.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	flying.requireFacts(told...)
	s.resync()
	require.NoError(s.t, s.Restart(s.t.Context(), s.watcher()))
	s.resync()
	idle.scale(2)
	idle.requireFacts("started 1", "completed 1", "scale_started 1→2", "scale_completed 1→2")
	flying.image(secondImage)
	flying.requireFacts(append(told, "superseded 2", "started 3", "completed 3")...)
}
