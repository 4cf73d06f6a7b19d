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
	// A pod is available one second after it is ready, so that the API server reports the state in
	// between.
	w := s.NewDeployment("new-pod-last", 3, rolling(intstr.FromInt32(0), intstr.FromInt32(1)),
		func(spec *appsv1.DeploymentSpec) { spec.MinReadySeconds = 1 })
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	last := statusBeforeComplete(w, "2")
	require.EqualValues(s.T, 3, last.Replicas, "no old pod was left")
	require.EqualValues(s.T, 2, last.AvailableReplicas, "a new one was missing")
}

func TestStrategiesLastEventIsOldPod(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("old-pod-last", 3, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	last := statusBeforeComplete(w, "2")
	require.EqualValues(s.T, 4, last.Replicas, "an old pod was left")
	require.EqualValues(s.T, 3, last.UpdatedReplicas, "no new one was missing")
}

// statusBeforeComplete returns the Deployment's last status before it was complete.
func statusBeforeComplete(w *fixture.Workload, revision string) appsv1.DeploymentStatus {
	w.T.Helper()
	var last appsv1.DeploymentStatus
	for _, d := range w.Recorder.Deployments(w.Namespace, revision) {
		if d.Status.ObservedGeneration >= d.Generation &&
			fixture.AllEqual(*d.Spec.Replicas, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas) {
			return last
		}
		last = d.Status
	}
	require.FailNow(w.T, "the Deployment was never complete", "%s at revision %s", w.Namespace, revision)
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
	w := s.NewDeployment("in-parts", 8, rolling(intstr.FromString("25%"), intstr.FromString("50%")),
		func(spec *appsv1.DeploymentSpec) { spec.MinReadySeconds = 1 })
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	fewest := int32(8)
	for _, d := range w.Recorder.Deployments(w.Namespace, "2") {
		require.LessOrEqual(s.T, d.Status.Replicas, int32(10))
		fewest = min(fewest, d.Status.AvailableReplicas)
	}
	require.Less(s.T, fewest, int32(8), "some were unavailable on the way")
	require.GreaterOrEqual(s.T, fewest, int32(4))
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
		func(spec *appsv1.DeploymentSpec) { spec.Template.Spec.Containers[0].Image = slowTerminationImage })
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
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
	require.True(s.T, drained.ObservedAt.After(completed.ObservedAt))
}
