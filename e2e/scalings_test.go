package e2e_test

import (
	"fmt"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/schemas/gen/events"
)

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

// horizontally puts the Deployment under a HorizontalPodAutoscaler. The lab has no metrics: only the bounds make it scale.
func (w *shop) horizontally(least, most int32) {
	w.t.Helper()
	_, err := w.kube.AutoscalingV2().HorizontalPodAutoscalers(w.namespace).Create(w.t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: shopMeta(), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: shopName},
			MinReplicas:    &least, MaxReplicas: most,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(80))},
			}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

// bounds changes those of the HorizontalPodAutoscaler.
func (w *shop) bounds(least, most int32) {
	w.t.Helper()
	_, err := w.kube.AutoscalingV2().HorizontalPodAutoscalers(w.namespace).Patch(w.t.Context(), shopName, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"minReplicas":%d,"maxReplicas":%d}}`, least, most), metav1.PatchOptions{})
	require.NoError(w.t, err)
}

func autoscaled(s *system) {
	w := s.shopDeployment("autoscaled", 1, rolling(intstr.FromInt32(0), intstr.FromString("100%")))
	w.horizontally(3, 5)
	told := []string{"started 1", "completed 1", "scale_started 1→3", "scale_completed 1→3"}
	w.requireFacts(told...)
	w.image(neverImage)
	told = append(told, "started 2")
	w.requireFacts(told...)
	w.bounds(1, 2)
	told = append(told, "scale_started 3→2")
	w.requireFacts(told...)
	w.image(thirdImage)
	w.requireFacts(append(told, "superseded 2", "started 3", "completed 3", "scale_completed 3→2")...)
}

// scalingsTakeTheirTime judges what was told of all scalings.
func scalingsTakeTheirTime(s *system) {
	started, took := map[string]events.DeployFact{}, 0
	for _, f := range s.allFacts() {
		switch key := f.Workload.UID; f.Fact {
		case events.FactScaleStarted:
			require.NotContains(s.t, started, key, "one at a time")
			started[key] = f
		case events.FactScaleCompleted:
			begun, is := started[key]
			require.True(s.t, is, "%s ends and never started", key)
			require.Equal(s.t, begun.Scale.From, f.Scale.From)
			require.NotNil(s.t, f.DurationMs)
			require.Equal(s.t, f.ObservedAt.Sub(begun.ObservedAt).Milliseconds(), int64(*f.DurationMs))
			delete(started, key)
			took++
		default: // is no scaling
		}
	}
	require.Positive(s.t, took)
}
