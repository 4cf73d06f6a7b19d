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
	s.lookout = lookOut(t, s.kube, metav1.NamespaceAll)
	s.together(
		promise{"the last event is a new pod", lastEventIsANewPod},
		promise{"the last event is an old pod", lastEventIsAnOldPod},
		promise{"all at once", allPodsAtOnce},
		promise{"in parts", rollsInParts},
		promise{"Recreate", recreates},
		promise{"complete while old pods drain", drainsAfterwards},
		promise{"scaling is no deploy", scalingIsNoDeploy},
		promise{"scaling in flight", scalingInFlight},
		promise{"scaled by an autoscaler", autoscaled},
		promise{"an edit of what is paused starts when it is resumed", pausedEditStartsOnResume},
		promise{"paused in flight", pausedInFlight},
		promise{"undo", undoIsARollback},
		promise{"undo without pods", undoWithoutPods},
		promise{"superseded twice", supersededTwice},
		promise{"taken back before it was complete", takenBackInFlight},
		promise{"the deadline passes", deadlinePasses},
		promise{"blocked by a quota", blockedByAQuota},
		promise{"a ReplicaSet deleted by hand is nobody's deploy", replicaSetDeletedByHand},
		promise{"a ReplicaSet deleted by hand in flight", replicaSetDeletedInFlight},
		promise{"rollout restart", rolloutRestart},
		promise{"deleted in flight", deletedInFlight},
		promise{"deleted and made anew", deletedAndMadeAnew},
		promise{"a StatefulSet by partitions", partitionsInSteps},
		promise{"a StatefulSet OnDelete", onDelete},
		promise{"a DaemonSet", daemonSetRolls},
		promise{"other kinds likewise", othersLikewise},
		promise{"a node that comes is no deploy", nodeAddedIsNoDeploy},
	)
	s.inTurn(
		promise{"full resyncs are silent", fullResyncsAreSilent},
		promise{"scalings have a duration", scalingsTakeTheirTime},
		promise{"it is what the API server saw", requireTrueFacts},
		promise{"the history is sound", requireSoundFacts},
	)
}

// requireTrueFacts compares all that was told of rollouts with what the API server said of the same workloads.
func requireTrueFacts(s *system) {
	s.t.Helper()
	truth := s.lookout.truth()
	require.Greater(s.t, len(truth), 20, "the API server was heard")
	require.Empty(s.t, history.Rollouts(told(s.records(topology.FamilyDeploy)), truth, nil))
}

// requireSoundFacts reads everything that was told of rollouts.
func requireSoundFacts(s *system) {
	s.t.Helper()
	require.Empty(s.t, history.Facts(stack.Cell, told(s.records(topology.FamilyDeploy))))
	require.Empty(s.t, s.records(topology.FamilyDead), "no service met a message that it could not process")
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
	w.deleteSet("1", 2)
	w.scale(3)
	told := []string{"started 1", "completed 1", "scale_started 2→3", "scale_completed 2→3"}
	w.requireFacts(told...)
	w.image(secondImage)
	told = append(told, "started 2", "completed 2")
	w.requireFacts(told...)
	w.deleteSet("2", 3)
	w.undo("1")
	w.requireFacts(append(told, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func replicaSetDeletedInFlight(s *system) {
	w := s.shopDeployment("by-hand-in-flight", 2, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	w.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	w.requireFacts(told...)
	w.deleteSet("2", 0)
	w.image(thirdImage)
	w.requireFacts(append(told, "superseded 2", "started 3", "completed 3")...)
}

// deleteSet deletes the newest ReplicaSet by hand, and waits until the cluster has made it anew, with so many pods that are available.
func (w *shop) deleteSet(revision string, available int32) {
	w.t.Helper()
	before, err := w.sets(w.t.Context())
	require.NoError(w.t, err)
	require.Contains(w.t, before, revision)
	require.NoError(w.t, w.kube.AppsV1().ReplicaSets(w.namespace).Delete(w.t.Context(), before[revision].Name, metav1.DeleteOptions{}))
	awaitCluster(w.t, "another ReplicaSet", func(ctx context.Context) (bool, error) {
		sets, err := w.sets(ctx)
		set := sets[revision]
		return set.UID != "" && set.UID != before[revision].UID && set.Status.AvailableReplicas == available && set.Status.ObservedGeneration >= set.Generation, err
	})
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

func fullResyncsAreSilent(s *system) {
	partly := appsv1.StatefulSetUpdateStrategy{
		Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))},
	}
	idle, flying, paused := s.shopDeployment("resynced-idle", 1), s.shopDeployment("resynced-in-flight", 1), s.shopDeployment("resynced-paused", 1)
	stateful, daemons := s.shopStatefulSet("resynced-stateful", partly), s.shopDaemonSet("resynced-daemons")
	told := []string{"started 1", "completed 1", "started 2"}
	for _, w := range []*shop{flying, paused, daemons} {
		w.image(neverImage)
		w.requireFacts(told...)
	}
	paused.pause(true)
	paused.requireFacts(append(told, "paused 2")...)
	stateful.image(secondImage)
	stateful.requireFacts(append(told, "partition_reached 2 at 2")...)

	s.resync()
	require.NoError(s.t, s.Restart(s.t.Context(), s.watcher()))
	s.resync()

	idle.scale(2)
	idle.requireFacts("started 1", "completed 1", "scale_started 1→2", "scale_completed 1→2")
	for _, w := range []*shop{flying, daemons} {
		w.image(secondImage)
		w.requireFacts(append(told, "superseded 2", "started 3", "completed 3")...)
	}
	paused.pause(false)
	paused.image(secondImage)
	paused.requireFacts(append(told, "paused 2", "resumed 2", "superseded 2", "started 3", "completed 3")...)
	stateful.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	stateful.requireFacts(append(told, "partition_reached 2 at 2", "completed 2")...)
}
