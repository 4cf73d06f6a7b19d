package kubelet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"

	"lockstep.internal/tools/kubelab/kubelet"
)

// port of the kubelets.
const port = 10250

// next returns the stage that kwok applies to the object, and its delay.
func next(t *testing.T, kind string, object metav1.Object) (string, time.Duration) {
	t.Helper()
	stages, err := lifecycle.NewLifecycle(
		kubelet.Stages(port, true)[internalversion.StageResourceRef{APIGroup: "v1", Kind: kind}],
	)
	require.NoError(t, err)
	event := &lifecycle.Event{Labels: object.GetLabels(), Annotations: object.GetAnnotations(), Data: object}
	possible, err := stages.ListAllPossible(t.Context(), event)
	require.NoError(t, err)
	if len(possible) == 0 {
		return "", 0
	}
	require.Len(t, possible, 1, "one stage applies to an object")
	delay, _, err := possible[0].Delay(t.Context(), event, time.Now())
	require.NoError(t, err)
	return possible[0].Name(), delay
}

func TestPodStages(t *testing.T) {
	t.Parallel()
	// after applies steps to a pod that was started long ago.
	after := func(steps int, pod *v1.Pod) *v1.Pod {
		for range steps {
			pod.Status = kubelet.NextPodStatus(pod, host, epoch())
		}
		return pod
	}
	annotated := func(pod *v1.Pod, fault, duration string) *v1.Pod {
		pod.Annotations = map[string]string{kubelet.FaultAnnotation: fault}
		if duration != "" {
			pod.Annotations[kubelet.FaultDurationAnnotation] = duration
		}
		return pod
	}
	deleted := func(pod *v1.Pod) *v1.Pod {
		pod.DeletionTimestamp = new(metav1.NewTime(epoch()))
		return pod
	}
	process := func(pod *v1.Pod) *v1.Pod {
		pod.Annotations = map[string]string{kubelet.AgentAnnotation: "workspace"}
		return pod
	}
	tests := map[string]struct {
		pod   *v1.Pod
		stage string
		delay time.Duration
	}{
		"new":                        {newPod("x"), "pod-step", 0},
		"process":                    {process(newPod("x")), "", 0},
		"deleted process":            {process(deleted(newPod("x"))), "", 0},
		"complete":                   {after(1, newPod("x")), "", 0},
		"failed":                     {&v1.Pod{Status: v1.PodStatus{Phase: v1.PodFailed}}, "", 0},
		"fault added to a ready pod": {annotated(after(1, newPod("x")), "crash-loop", ""), "pod-step", 0},
		"other fault on a ready pod": {annotated(after(1, newPod("x")), "stuck-terminating", ""), "", 0},
		"node recovered":             {notReady(after(1, newPod("x"))), "pod-step", 0},
		"failed pull":                {after(1, newPod("missing")), "pod-step", time.Second},
		"pull backs off":             {after(2, newPod("missing")), "pod-step", 30 * time.Second},
		"running to crash":           {after(1, newPod("crash-loop")), "pod-step", 500 * time.Millisecond},
		"first crash":                {after(2, newPod("crash-loop")), "pod-step", 200 * time.Millisecond},
		"crash backs off":            {after(4, newPod("crash-loop")), "pod-step", time.Second},
		"third crash backs off":      {after(8, newPod("crash-loop")), "pod-step", 4 * time.Second},
		"slow start by default": {
			after(1, annotated(withStart(newPod("x")), "slow-start", "")),
			"pod-step",
			10 * time.Second,
		},
		"slow start by image": {
			after(1, withStart(newPod("registry.example:5000/slow-start:1m30s"))),
			"pod-step",
			90 * time.Second,
		},
		"slow start by annotation": {
			after(1, annotated(withStart(newPod("slow-start:7s")), "slow-start", "2.5s")),
			"pod-step",
			2500 * time.Millisecond,
		},
		"shortest wait wins": {after(1, withStart(newPod("slow-start:9s", "missing"))), "pod-step", time.Second},
		"deleted":            {deleted(after(1, newPod("x"))), "pod-delete", 0},
		"deleted and stuck":  {deleted(annotated(newPod("x"), "stuck-terminating", "")), "", 0},
		"deleted and slow": {
			deleted(annotated(newPod("x"), "stuck-terminating", "3s")),
			"pod-delete-late",
			3 * time.Second,
		},
		"stuck by image":         {deleted(newPod("r/stuck-terminating")), "", 0},
		"slow by image":          {deleted(newPod("r/stuck-terminating:4s")), "pod-delete-late", 4 * time.Second},
		"deleted while crashing": {deleted(after(4, newPod("crash-loop"))), "pod-delete", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stage, delay := next(t, "Pod", test.pod)
			require.Equal(t, test.stage, stage)
			require.Equal(t, test.delay, delay)
		})
	}
}

// withStart sets the pod's start time to now, so that a fault with a duration is still active.
func withStart(pod *v1.Pod) *v1.Pod {
	pod.Status.StartTime = new(metav1.NewTime(epoch()))
	return pod
}

func notReady(pod *v1.Pod) *v1.Pod {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == v1.PodReady {
			pod.Status.Conditions[i].Status = v1.ConditionFalse
		}
	}
	return pod
}

func TestNodeStages(t *testing.T) {
	t.Parallel()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: kubelet.NodeName(1)}}
	stage, delay := next(t, "Node", node)
	require.Equal(t, "node-ready", stage)
	require.Zero(t, delay)
	node.Status = kubelet.NodeStatus(node, port, epoch())
	stage, _ = next(t, "Node", node)
	require.Empty(t, stage)
	// A restarted lab has another port.
	node.Status = kubelet.NodeStatus(node, port+1, epoch())
	stage, _ = next(t, "Node", node)
	require.Equal(t, "node-ready", stage)
}
