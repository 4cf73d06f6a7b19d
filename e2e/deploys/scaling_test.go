package deploys_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
)

func TestScalingIsNoRollout(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("scales", 1)
	w.Scale(3)
	facts := []string{"started 1", "completed 1", "scale_started 1→3", "scale_completed 1→3"}
	w.RequireFacts(facts...)
	w.ScaleAsAutoscaler(2)
	facts = append(facts, "scale_started 3→2", "scale_completed 3→2")
	w.RequireFacts(facts...)
	w.Scale(0)
	w.RequireFacts(append(facts, "scale_started 2→0", "scale_completed 2→0")...)
}

func TestScalingDuringRollout(t *testing.T) {
	s := shared.Parallel(t)
	// No old pod counts for the scaling: both complete with the same observation.
	w := s.NewDeployment("scales-in-flight", 2, rolling(intstr.FromInt32(0), intstr.FromString("100%")))
	w.SetImage(fixture.NeverReadyImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	w.RequireFacts(facts...)
	w.ScaleAsAutoscaler(4)
	facts = append(facts, "scale_started 2→4")
	w.RequireFacts(facts...)
	w.SetImage(fixture.ThirdImage)
	w.RequireFacts(append(facts, "superseded 2", "started 3", "completed 3", "scale_completed 2→4")...)
}

// createAutoscaler creates a HorizontalPodAutoscaler. The cluster has no metrics: only its bounds
// scale the Deployment.
func createAutoscaler(w *fixture.Workload, least, most int32) {
	w.T.Helper()
	_, err := w.Kube.AutoscalingV2().HorizontalPodAutoscalers(w.Namespace).Create(
		w.T.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: fixture.WorkloadMeta(), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: "apps/v1",
					Kind:       "Deployment",
					Name:       fixture.WorkloadName,
				},
				MinReplicas: &least,
				MaxReplicas: most,
				Metrics: []autoscalingv2.MetricSpec{
					{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
						Name:   corev1.ResourceCPU,
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(80))},
					}},
				},
			},
		},
		metav1.CreateOptions{},
	)
	require.NoError(w.T, err)
}

// setAutoscalerBounds changes the autoscaler's bounds.
func setAutoscalerBounds(w *fixture.Workload, least, most int32) {
	w.T.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"minReplicas":%d,"maxReplicas":%d}}`, least, most)
	_, err := w.Kube.AutoscalingV2().HorizontalPodAutoscalers(w.Namespace).Patch(
		w.T.Context(), fixture.WorkloadName, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(w.T, err)
}

func TestScalingByAutoscaler(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("autoscaled", 1, rolling(intstr.FromInt32(0), intstr.FromString("100%")))
	createAutoscaler(w, 3, 5)
	facts := []string{"started 1", "completed 1", "scale_started 1→3", "scale_completed 1→3"}
	w.RequireFacts(facts...)
	w.SetImage(fixture.NeverReadyImage)
	facts = append(facts, "started 2")
	w.RequireFacts(facts...)
	setAutoscalerBounds(w, 1, 2)
	facts = append(facts, "scale_started 3→2")
	w.RequireFacts(facts...)
	w.SetImage(fixture.ThirdImage)
	w.RequireFacts(append(facts, "superseded 2", "started 3", "completed 3", "scale_completed 3→2")...)
}

// requireScalingDurations checks the durations of all scalings.
func requireScalingDurations(s *fixture.System) {
	started := map[string]events.DeployFact{}
	for _, f := range s.AllFacts() {
		switch key := f.Workload.UID; f.Fact {
		case events.FactScaleStarted:
			require.NotContains(s.T, started, key, "one at a time")
			started[key] = f
		case events.FactScaleCompleted:
			begun, is := started[key]
			require.True(s.T, is, "the scaling of %s ended without a start", key)
			require.Equal(s.T, begun.Scale.From, f.Scale.From)
			require.NotNil(s.T, f.DurationMs)
			require.Equal(s.T, f.ObservedAt.Sub(begun.ObservedAt).Milliseconds(), int64(*f.DurationMs))
			delete(started, key)
		default: // not about scaling
		}
	}
}
