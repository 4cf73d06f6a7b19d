package deploys_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
)

func rolling(surge, unavailable intstr.IntOrString) func(*appsv1.DeploymentSpec) {
	return func(spec *appsv1.DeploymentSpec) {
		spec.Strategy = appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
		}
	}
}

func TestStrategiesLastEventIsNewPod(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("new-pod-last", 3, rolling(intstr.FromInt32(0), intstr.FromInt32(1)))
	w.SetImage(fixture.NeverReadyImage)
	for updated := range int32(3) {
		w.AwaitDeployment(3, updated+1, 2)
		w.EndFaults()
	}
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	last := statusBeforeComplete(w, "2")
	require.EqualValues(s.T, 3, last.Replicas, "no old pod was left")
	require.EqualValues(s.T, 2, last.AvailableReplicas, "a new one was missing")
}

func TestStrategiesLastEventIsOldPod(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("old-pod-last", 3, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	w.SetImage(fixture.NeverReadyImage)
	for updated := range int32(3) {
		w.AwaitDeployment(4, updated+1, 3)
		w.EndFaults()
	}
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	last := statusBeforeComplete(w, "2")
	require.EqualValues(s.T, 4, last.Replicas, "an old pod was left")
	require.EqualValues(s.T, 3, last.UpdatedReplicas, "no new one was missing")
}

// statusBeforeComplete waits until the Deployment is complete and returns its last status before.
func statusBeforeComplete(w *fixture.Workload, revision string) appsv1.DeploymentStatus {
	w.T.Helper()
	var last appsv1.DeploymentStatus
	require.Eventually(w.T, func() bool {
		for _, d := range w.Recorder.Deployments(w.Namespace, revision) {
			if d.Status.ObservedGeneration >= d.Generation &&
				fixture.AllEqual(*d.Spec.Replicas, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas) {
				return true
			}
			last = d.Status
		}
		return false
	}, fixture.Timeout, fixture.PollInterval, "%s is complete at revision %s", w.Namespace, revision)
	return last
}

func TestStrategiesAllPodsAtOnce(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("all-at-once", 4, rolling(intstr.FromString("100%"), intstr.FromString("100%")))
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
}

func TestStrategiesInParts(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("in-parts", 8, rolling(intstr.FromString("25%"), intstr.FromString("50%")))
	w.SetImage(fixture.NeverReadyImage)
	w.AwaitDeployment(10, 6, 4)
	w.EndFaults()
	w.AwaitDeployment(8, 8, 6)
	w.EndFaults()
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
}

// slowTermination is how long pods of slowTerminationImage take to terminate.
const (
	slowTermination      = 3 * time.Second
	slowTerminationImage = "registry.example/stuck-terminating:3s"
)

func TestStrategiesRecreate(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("recreates", 2,
		func(spec *appsv1.DeploymentSpec) { spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
	w.SetImage(slowTerminationImage)
	facts := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.RequireFacts(facts...)
	w.SetImage(fixture.SecondImage)
	w.RequireFacts(append(facts, "started 3", "completed 3")...)
	sets, err := w.ReplicaSets(s.T.Context())
	require.NoError(s.T, err)
	made := sets["3"].CreationTimestamp.Time
	for _, f := range w.Facts() {
		if f.Fact == events.FactStarted && f.Rollout.Revision == 3 {
			// Both times have a resolution of one second.
			require.GreaterOrEqual(s.T, made.Sub(f.OccurredAt), slowTermination-time.Second,
				"it starts with the edit, not when the old pods are gone")
			return
		}
	}
}

// TestStrategiesDrainAfterComplete checks that a rollout completes while old pods still terminate,
// and that draining has its own duration.
func TestStrategiesDrainAfterComplete(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("drains", 2,
		func(spec *appsv1.DeploymentSpec) {
			spec.Template.Spec.Containers[0].Image = "registry.example/stuck-terminating"
		})
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	w.EndFaults()
	var completed, drained events.DeployFact
	require.Eventually(s.T, func() bool {
		for _, f := range w.Facts() {
			switch {
			case f.Rollout == nil || f.Rollout.Revision != 2:
			case f.Fact == events.FactCompleted:
				completed = f
			case f.Fact == events.FactDrained:
				drained = f
			}
		}
		return drained.Fact != ""
	}, fixture.Timeout, fixture.PollInterval, "the old pods are gone")
	require.NotNil(s.T, completed.Counts.Terminating)
	require.Positive(s.T, *completed.Counts.Terminating, "old pods were about to end when it was complete")
	require.Greater(s.T, drained.Sequence, completed.Sequence)
	require.Zero(s.T, *drained.Counts.Terminating)
	require.False(s.T, drained.ObservedAt.Before(completed.ObservedAt))
}
