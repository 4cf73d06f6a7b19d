package deploys_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/history"
)

// requireFactsMatchAPIServer waits until all facts match what the API server reported of the same
// workloads.
func requireFactsMatchAPIServer(s *fixture.System) {
	s.T.Helper()
	require.EventuallyWithT(s.T, func(c *assert.CollectT) {
		expected := s.Recorder.ExpectedRollouts()
		require.NotEmpty(c, expected, "the API server reported workloads")
		require.Empty(c, history.Rollouts(fixture.HistoryRecords(s.Records(topology.FamilyDeploy)), expected, nil))
	}, fixture.Timeout, 10*fixture.PollInterval)
}

func TestRolloutsPausedEditStartsOnResume(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("paused", 2)
	facts := []string{"started 1", "completed 1"}
	w.SetPaused(true)
	w.SetImage(fixture.SecondImage)
	fixture.AwaitCluster(s.T, "the edit is seen", func(ctx context.Context) (bool, error) {
		d, err := w.Kube.AppsV1().Deployments(w.Namespace).Get(ctx, fixture.WorkloadName, metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation, err
	})
	w.RequireFacts(facts...)
	w.SetPaused(false)
	w.RequireFacts(append(facts, "started 2", "completed 2")...)
}

func TestRolloutsPausedInFlight(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("paused-in-flight", 2)
	w.SetImage(fixture.NeverReadyImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	w.SetPaused(true)
	facts = append(facts, "paused 2")
	w.RequireFacts(facts...)
	w.SetPaused(false)
	facts = append(facts, "resumed 2")
	w.RequireFacts(facts...)
	w.SetImage(fixture.ThirdImage)
	w.RequireFacts(append(facts, "superseded 2", "started 3", "completed 3")...)
}

func TestRolloutsUndoIsRollback(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("undone", 2)
	facts := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.SetImage(fixture.SecondImage)
	w.RequireFacts(facts...)
	w.Undo("1")
	facts = append(facts, "started 3", "rolled_back 3 to 1", "completed 3")
	w.RequireFacts(facts...)
	w.SetImage(fixture.ThirdImage)
	facts = append(facts, "started 4", "completed 4")
	w.RequireFacts(facts...)
	w.Undo("2")
	w.RequireFacts(append(facts, "started 5", "rolled_back 5 to 2", "completed 5")...)
}

func TestRolloutsUndoAtZeroReplicas(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("undone-at-zero", 1)
	facts := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.SetImage(fixture.SecondImage)
	w.RequireFacts(facts...)
	w.Scale(0)
	facts = append(facts, "scale_started 1→0", "scale_completed 1→0")
	w.RequireFacts(facts...)
	w.Undo("1")
	w.RequireFacts(append(facts, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func TestRolloutsSupersededTwice(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("superseded", 2)
	w.SetImage(fixture.NeverReadyImage)
	w.AwaitRevision("2")
	w.SetImage("registry.example/not-ready:2")
	w.AwaitRevision("3")
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "superseded 2", "started 3", "superseded 3", "started 4",
		"completed 4")
}

func TestRolloutsUndoneInFlight(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("taken-back", 2)
	w.SetImage(fixture.NeverReadyImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	w.Undo("1")
	w.RequireFacts(append(facts, "cancelled 2", "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func TestRolloutsProgressDeadline(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("late", 1)
	setDeadline := func(seconds int) { w.Patch(fmt.Sprintf(`{"spec":{"progressDeadlineSeconds":%d}}`, seconds)) }
	w.SetImage(fixture.NeverReadyImage)
	w.AwaitDeployment(2, 1, 1)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	setDeadline(1)
	facts = append(facts, "stalled 2")
	w.RequireFacts(facts...)
	setDeadline(600)
	w.EndFaults()
	w.RequireFacts(append(facts, "recovered 2", "completed 2")...)
}

func TestRolloutsBlockedByQuota(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("blocked", 2, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	limitPods(w, 2)
	w.SetImage(fixture.SecondImage)
	facts := []string{"started 1", "completed 1", "started 2", "blocked 2"}
	w.RequireFacts(facts...)
	require.NoError(s.T,
		s.Kube.CoreV1().ResourceQuotas(w.Namespace).Delete(s.T.Context(), quotaName, metav1.DeleteOptions{}))
	w.RequireFacts(append(facts, "unblocked 2", "completed 2")...)
}

const quotaName = "few"

// limitPods limits the pods of the workload's namespace, and waits until the quota is in force.
func limitPods(w *fixture.Workload, pods int64) {
	w.T.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: quotaName}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI)},
	}}
	_, err := w.Kube.CoreV1().ResourceQuotas(w.Namespace).Create(w.T.Context(), quota, metav1.CreateOptions{})
	require.NoError(w.T, err)
	fixture.AwaitCluster(w.T, "the quota is in force", func(ctx context.Context) (bool, error) {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: fixture.WorkloadPods().Spec}
		_, err := w.Kube.CoreV1().Pods(w.Namespace).Create(ctx, probe,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "exceeded quota"), nil
	})
}

func TestRolloutsReplicaSetDeleted(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("by-hand", 2)
	deleteReplicaSet(w, "1", 2)
	w.Scale(3)
	facts := []string{"started 1", "completed 1", "scale_started 2→3", "scale_completed 2→3"}
	w.RequireFacts(facts...)
	w.SetImage(fixture.SecondImage)
	facts = append(facts, "started 2", "completed 2")
	w.RequireFacts(facts...)
	deleteReplicaSet(w, "2", 3)
	w.Undo("1")
	w.RequireFacts(append(facts, "started 3", "rolled_back 3 to 1", "completed 3")...)
}

func TestRolloutsReplicaSetDeletedInFlight(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("by-hand-in-flight", 2, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	w.SetImage(fixture.NeverReadyImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	deleteReplicaSet(w, "2", 0)
	w.SetImage(fixture.ThirdImage)
	w.RequireFacts(append(facts, "superseded 2", "started 3", "completed 3")...)
}

// deleteReplicaSet deletes the ReplicaSet of a revision and waits until its controller has created
// it again with the given number of available pods.
func deleteReplicaSet(w *fixture.Workload, revision string, available int32) {
	w.T.Helper()
	before, err := w.ReplicaSets(w.T.Context())
	require.NoError(w.T, err)
	require.Contains(w.T, before, revision)
	require.NoError(w.T,
		w.Kube.AppsV1().ReplicaSets(w.Namespace).Delete(w.T.Context(), before[revision].Name, metav1.DeleteOptions{}))
	fixture.AwaitCluster(w.T, "another ReplicaSet", func(ctx context.Context) (bool, error) {
		sets, err := w.ReplicaSets(ctx)
		set := sets[revision]
		return set.UID != "" && set.UID != before[revision].UID && set.Status.AvailableReplicas == available &&
			set.Status.ObservedGeneration >= set.Generation, err
	})
}

func TestRolloutsRestart(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("restarted", 2)
	w.Restart()
	w.RequireFacts("started 1", "completed 1", "started 2", "restarted 2", "completed 2")
}

func TestRolloutsDeletedInFlight(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("deleted-in-flight", 2)
	w.SetImage(fixture.NeverReadyImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	w.Delete()
	w.RequireFacts(append(facts, "cancelled 2")...)
}

func TestRolloutsDeletedAndRecreated(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("made-anew", 1)
	w.Delete()
	facts := []string{"started 1", "completed 1", "removed"}
	w.RequireFacts(facts...)
	_, err := s.Kube.AppsV1().Deployments(w.Namespace).Create(s.T.Context(), &appsv1.Deployment{
		ObjectMeta: fixture.WorkloadMeta(),
		Spec:       appsv1.DeploymentSpec{Selector: fixture.WorkloadSelector(), Template: fixture.WorkloadPods()},
	}, metav1.CreateOptions{})
	require.NoError(s.T, err)
	w.RequireFacts(append(facts, "started 1", "completed 1")...)
}

func TestRolloutsResyncPublishesNothing(t *testing.T) {
	s := shared.Exclusive(t)
	partly := appsv1.StatefulSetUpdateStrategy{
		Type:          appsv1.RollingUpdateStatefulSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))},
	}
	idle, flying := s.NewDeployment("resynced-idle", 1), s.NewDeployment("resynced-in-flight", 1)
	paused := s.NewDeployment("resynced-paused", 1)
	stateful, daemons := newStatefulSet(s, "resynced-stateful", partly), newDaemonSet(s, "resynced-daemons")
	facts := []string{"started 1", "completed 1", "started 2"}
	for _, w := range []*fixture.Workload{flying, paused, daemons} {
		w.SetImage(fixture.NeverReadyImage)
		w.RequireFacts(facts...)
	}
	paused.SetPaused(true)
	paused.RequireFacts(append(facts, "paused 2")...)
	stateful.SetImage(fixture.SecondImage)
	stateful.RequireFacts(append(facts, "partition_reached 2 at 2")...)

	s.Resync()
	require.NoError(s.T, s.Restart(s.T.Context(), s.WatcherName()))
	s.Resync()

	idle.Scale(2)
	idle.RequireFacts("started 1", "completed 1", "scale_started 1→2", "scale_completed 1→2")
	for _, w := range []*fixture.Workload{flying, daemons} {
		w.SetImage(fixture.SecondImage)
		w.RequireFacts(append(facts, "superseded 2", "started 3", "completed 3")...)
	}
	paused.SetPaused(false)
	paused.SetImage(fixture.SecondImage)
	paused.RequireFacts(append(facts, "paused 2", "resumed 2", "superseded 2", "started 3", "completed 3")...)
	stateful.Patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	stateful.RequireFacts(append(facts, "partition_reached 2 at 2", "completed 2")...)
}
