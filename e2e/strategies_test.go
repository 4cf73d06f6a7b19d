package e2e_test

import (
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/schemas/gen/events"
)

func rolling(surge, unavailable intstr.IntOrString) func(*appsv1.DeploymentSpec) {
	return func(spec *appsv1.DeploymentSpec) {
		spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
		}
	}
}

func lastEventIsANewPod(s *system) {
	// A pod counts a second after it is ready, so that the cluster tells of the time in between.
	w := s.shopDeployment("new-pod-last", 3, rolling(intstr.FromInt32(0), intstr.FromInt32(1)), func(spec *appsv1.DeploymentSpec) { spec.MinReadySeconds = 1 })
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
	last := w.beforeComplete("2")
	require.EqualValues(s.t, 3, last.Replicas, "no old pod was left")
	require.EqualValues(s.t, 2, last.AvailableReplicas, "a new one was missing")
}

func lastEventIsAnOldPod(s *system) {
	w := s.shopDeployment("old-pod-last", 3, rolling(intstr.FromInt32(1), intstr.FromInt32(0)))
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
	last := w.beforeComplete("2")
	require.EqualValues(s.t, 4, last.Replicas, "an old pod was left")
	require.EqualValues(s.t, 3, last.UpdatedReplicas, "no new one was missing")
}

// beforeComplete is what the cluster said of the Deployment right before it was complete.
func (w *shop) beforeComplete(revision string) appsv1.DeploymentStatus {
	w.t.Helper()
	var last appsv1.DeploymentStatus
	for _, d := range w.lookout.deployments(w.namespace, revision) {
		if d.Status.ObservedGeneration >= d.Generation && allAre(*d.Spec.Replicas, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas) {
			return last
		}
		last = d.Status
	}
	require.FailNow(w.t, "it never was complete", "%s at revision %s", w.namespace, revision)
	return last
}

func allPodsAtOnce(s *system) {
	w := s.shopDeployment("all-at-once", 4, rolling(intstr.FromString("100%"), intstr.FromString("100%")))
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
}

func rollsInParts(s *system) {
	w := s.shopDeployment("in-parts", 8, rolling(intstr.FromString("25%"), intstr.FromString("50%")), func(spec *appsv1.DeploymentSpec) { spec.MinReadySeconds = 1 })
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
	fewest := int32(8)
	for _, d := range w.lookout.deployments(w.namespace, "2") {
		require.LessOrEqual(s.t, d.Status.Replicas, int32(10))
		fewest = min(fewest, d.Status.AvailableReplicas)
	}
	require.Less(s.t, fewest, int32(8), "some were unavailable on the way")
	require.GreaterOrEqual(s.t, fewest, int32(4))
}

// lingering pods take so long to go.
const (
	lingering      = 3 * time.Second
	lingeringImage = "registry.example/stuck-terminating:3s"
)

func recreates(s *system) {
	w := s.shopDeployment("recreates", 2, func(spec *appsv1.DeploymentSpec) { spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
	w.image(lingeringImage)
	told := []string{"started 1", "completed 1", "started 2", "completed 2"}
	w.requireFacts(told...)
	w.image(secondImage)
	w.requireFacts(append(told, "started 3", "completed 3")...)
	sets, err := w.sets(s.t.Context())
	require.NoError(s.t, err)
	made := sets["3"].CreationTimestamp.Time
	for _, f := range w.facts() {
		if f.Fact == events.FactStarted && f.Rollout.Revision == 3 {
			// Both are told to the second.
			require.GreaterOrEqual(s.t, made.Sub(f.OccurredAt), lingering-time.Second, "it starts with the edit, not when the old pods are gone")
			return
		}
	}
}

// drainsAfterwards: a rollout is complete while old pods are still about to end, which has a time of its own.
func drainsAfterwards(s *system) {
	w := s.shopDeployment("drains", 2, func(spec *appsv1.DeploymentSpec) { spec.Template.Spec.Containers[0].Image = lingeringImage })
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
	var completed, drained events.DeployFact
	require.Eventually(s.t, func() bool {
		for _, f := range w.facts() {
			switch {
			case f.Rollout == nil || f.Rollout.Revision != 2:
			case f.Fact == events.FactCompleted:
				completed = f
			case f.Fact == events.FactDrained:
				drained = f
			}
		}
		return drained.Fact != ""
	}, patience, clusterTick, "the old pods are gone")
	require.NotNil(s.t, completed.Counts.Terminating)
	require.Positive(s.t, *completed.Counts.Terminating, "old pods were about to end when it was complete")
	require.Greater(s.t, drained.Sequence, completed.Sequence)
	require.Zero(s.t, *drained.Counts.Terminating)
	require.True(s.t, drained.ObservedAt.After(completed.ObservedAt))
}
