package report_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/report"
)

// waiting returns a pod whose container waits for a reason.
func waiting(name, reason, message string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:2"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name:  "main",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}},
	}
}

func unscheduled(name string) corev1.Pod {
	pod := waiting(name, "", "")
	pod.Status.ContainerStatuses = nil
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no room"},
		{Type: corev1.PodReady, Status: corev1.ConditionFalse},
	}
	return pod
}

func listed(t *testing.T, pods ...corev1.Pod) (events.ObservedWorkloadPods, string, report.Message) {
	t.Helper()
	message, summary, err := report.Reporter{Cell: "local", Agent: 7, ClusterUID: "c"}.WorkloadPods(report.PodList{
		Workload: someWorkload(), Revision: "web-2", Version: "99", ListedAt: epoch(), Pods: pods,
	})
	require.NoError(t, err)
	require.NoError(t, events.Validate(message.Event.Type(), message.Event.Data()))
	var data events.ObservedWorkloadPods
	require.NoError(t, json.Unmarshal(message.Event.Data(), &data))
	return data, summary, message
}

func TestFailingPodsArePublishedUnderTheirWorkload(t *testing.T) {
	t.Parallel()
	data, summary, message := listed(t, unscheduled("a"), waiting("b", "ContainerCreating", ""),
		waiting("c", "ImagePullBackOff", "Back-off pulling image: not found"))
	require.Equal(t, "lockstep.local.observed.7.workload.statefulset.ns.web", message.Subject)
	require.Equal(t, "ErrImagePull: image web:2 cannot be pulled: not found\nUnschedulable: "+
		"no node of the cluster can take its pods: no room", summary)
	require.Equal(t, "web-2", data.RevisionName)
	require.Equal(t, "99", data.ListVersion)
	require.Equal(t, "42", data.Object.ResourceVersion)
	require.Equal(t, []events.WaitingPod{
		{Name: "c", Containers: []events.ContainerState{{
			Name: "main", Image: "web:2", State: events.ContainerStatusWaiting, Reason: "ImagePullBackOff",
			Message: "Back-off pulling image: not found",
		}}},
		{
			Name: "a", Conditions: []events.Condition{{
				Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "no room",
			}},
			Containers: []events.ContainerState{{Name: "main", Image: "web:2", State: events.ContainerStatusWaiting}},
		},
	}, data.Pods)
}

func TestListOfHealthyPodsHasAnEmptySummary(t *testing.T) {
	t.Parallel()
	data, summary, _ := listed(t, waiting("b", "ContainerCreating", ""))
	require.Empty(t, summary)
	require.Empty(t, data.Pods)
}

func TestEqualFailuresSayTheSame(t *testing.T) {
	t.Parallel()
	_, first, before := listed(t, waiting("b", "ErrImagePull", "not found"))
	_, second, after := listed(t, waiting("c", "ImagePullBackOff", "Back-off: not found"),
		waiting("d", "ErrImagePull", "not found"))
	require.Equal(t, first, second)
	require.NotEqual(t, before.Event.ID(), after.Event.ID())
}

// A container that keeps exiting runs, has ended or waits. A list may meet it in each of them.
func TestCrashLoopHasTheSameSummaryInEachState(t *testing.T) {
	t.Parallel()
	const want = "CrashLoopBackOff: container main keeps exiting: its command failed with exit code 3"
	ended := &corev1.ContainerStateTerminated{ExitCode: 3}
	for name, state := range map[string]corev1.ContainerState{
		"runs":      {Running: &corev1.ContainerStateRunning{}},
		"has ended": {Terminated: ended},
		"waits":     {Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	} {
		pod := waiting("b", "", "")
		pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{
			Name: "main", RestartCount: 2, State: state, LastTerminationState: corev1.ContainerState{Terminated: ended},
		}
		_, summary, _ := listed(t, pod)
		require.Equal(t, want, summary, name)
	}
}

func TestEventOfManyPodsIsBounded(t *testing.T) {
	t.Parallel()
	var pods []corev1.Pod
	for i := range 100 {
		pod := waiting(fmt.Sprintf("web-%03d", i), "RunContainerError", strings.Repeat("é", 10_000))
		for j := range 50 {
			c := corev1.Container{Name: fmt.Sprintf("side-%d", j), Image: "side:1"}
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
		pods = append(pods, pod)
	}
	data, _, message := listed(t, pods...)
	require.Len(t, data.Pods, 3)
	require.Less(t, len(message.Event.Data()), 32<<10)
}
