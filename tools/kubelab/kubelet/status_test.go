package kubelet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"lockstep.internal/tools/kubelab/kubelet"
)

func TestMain(m *testing.M) {
	if err := kubelet.CheckStages(context.Background()); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const host = "198.18.0.1"

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC) }

func newPod(images ...string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u1", Generation: 1},
		Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, NodeName: "node-1"},
		Status:     v1.PodStatus{Phase: v1.PodPending},
	}
	for i, image := range images {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: string(rune('a' + i)), Image: image})
	}
	return pod
}

// history describes the states of the pod's containers over a number of steps, one second apart.
func history(pod *v1.Pod, steps int) []string {
	pod = pod.DeepCopy()
	out := make([]string, 0, steps)
	for i := range steps {
		pod.Status = kubelet.NextPodStatus(pod, host, epoch().Add(time.Duration(i)*time.Second))
		parts := make([]string, 0, 4)
		for _, s := range append(append([]v1.ContainerStatus{}, pod.Status.InitContainerStatuses...),
			pod.Status.ContainerStatuses...) {
			parts = append(parts, s.Name+":"+describe(s))
		}
		out = append(out, strings.Join(append(parts, string(pod.Status.Phase)), " "))
	}
	return out
}

func describe(s v1.ContainerStatus) string {
	text := ""
	switch {
	case s.State.Waiting != nil:
		text = s.State.Waiting.Reason
	case s.State.Terminated != nil:
		text = s.State.Terminated.Reason
	case s.State.Running != nil && s.Ready:
		text = "ready"
	case s.State.Running != nil:
		text = "running"
	}
	if s.RestartCount > 0 {
		text += strings.Repeat("+", int(s.RestartCount))
	}
	return text
}

func TestHistories(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		pod  func() *v1.Pod
		want []string
	}{
		"healthy": {
			pod:  func() *v1.Pod { return newPod("x", "y") },
			want: []string{"a:ready b:ready Running", "a:ready b:ready Running"},
		},
		"image pull": {
			pod: func() *v1.Pod { return newPod("r/missing:1", "y") },
			want: []string{
				"a:ErrImagePull b:ready Pending",
				"a:ImagePullBackOff b:ready Pending",
				"a:ErrImagePull b:ready Pending",
			},
		},
		"crash loop": {
			pod: func() *v1.Pod { return newPod("r/crash-loop") },
			want: []string{
				"a:running Running", "a:Error Running", "a:running+ Running", "a:CrashLoopBackOff+ Running",
				"a:running++ Running", "a:CrashLoopBackOff++ Running",
			},
		},
		"crash loop that heals": {
			pod: func() *v1.Pod { return newPod("r/crash-loop:4s") },
			want: []string{
				"a:running Running", "a:Error Running", "a:running+ Running", "a:CrashLoopBackOff+ Running",
				"a:ready++ Running", "a:ready++ Running",
			},
		},
		"crash of a pod that is not restarted": {
			pod: func() *v1.Pod {
				pod := newPod("r/crash-loop")
				pod.Spec.RestartPolicy = v1.RestartPolicyNever
				return pod
			},
			want: []string{"a:running Running", "a:Error Failed", "a:Error Failed"},
		},
		"failing start": {
			pod: func() *v1.Pod { return newPod("run-container-error") },
			want: []string{
				"a:RunContainerError Pending",
				"a:CrashLoopBackOff Running",
				"a:RunContainerError+ Running",
				"a:CrashLoopBackOff+ Running",
			},
		},
		"slow start lasts ten seconds": {
			pod:  func() *v1.Pod { return newPod("slow-start") },
			want: append(repeat("a:ContainerCreating Pending", 10), "a:ready Running"),
		},
		"the annotation replaces the fault of the image": {
			pod: func() *v1.Pod {
				pod := newPod("crash-loop")
				pod.Annotations = map[string]string{kubelet.FaultAnnotation: "slow-start", kubelet.FaultDurationAnnotation: "2s"}
				return pod
			},
			want: []string{"a:ContainerCreating Pending", "a:ContainerCreating Pending", "a:ready Running"},
		},
		"init containers come first": {
			pod: func() *v1.Pod {
				pod := newPod("x")
				pod.Spec.InitContainers = []v1.Container{
					{Name: "i", Image: "r/missing:2s"},
					{Name: "s", Image: "x", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
				}
				return pod
			},
			want: []string{
				"i:ErrImagePull s:PodInitializing a:PodInitializing Pending",
				"i:ImagePullBackOff s:PodInitializing a:PodInitializing Pending",
				"i:Completed s:ready a:ready Running",
			},
		},
		"job": {
			pod: func() *v1.Pod {
				pod := newPod("x")
				pod.Spec.RestartPolicy = v1.RestartPolicyNever
				pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Controller: new(true)}}
				return pod
			},
			want: []string{"a:ready Running", "a:Completed Succeeded", "a:Completed Succeeded"},
		},
		"an annotation that is no fault": {
			pod: func() *v1.Pod {
				pod := newPod("x")
				pod.Annotations = map[string]string{kubelet.FaultAnnotation: "bad-luck"}
				return pod
			},
			want: []string{"a:ready Running"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, history(test.pod(), len(test.want)))
		})
	}
}

func repeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func TestBackOffGrowsTo30Seconds(t *testing.T) {
	t.Parallel()
	pod := newPod("crash-loop")
	var delays []string
	for len(delays) < 7 {
		pod.Status = kubelet.NextPodStatus(pod, host, epoch())
		if w := pod.Status.ContainerStatuses[0].State.Waiting; w != nil {
			require.Regexp(t, `^back-off \d+s restarting failed container=a pod=p_ns\(u1\)$`, w.Message)
			delays = append(delays, strings.Fields(w.Message)[1])
		}
	}
	require.Equal(t, []string{"1s", "2s", "4s", "8s", "16s", "30s", "30s"}, delays)
}

func TestConditionsFollowContainers(t *testing.T) {
	t.Parallel()
	pod := newPod("x", "not-ready:3s")
	pod.Status = kubelet.NextPodStatus(pod, host, epoch())
	first := condition(t, pod.Status, v1.PodReady)
	require.Equal(t, v1.ConditionFalse, first.Status)
	require.Equal(t, "ContainersNotReady", first.Reason)
	require.Equal(t, "containers with unready status: [b]", first.Message)
	initialized := condition(t, pod.Status, v1.PodInitialized)

	pod.Status = kubelet.NextPodStatus(pod, host, epoch().Add(time.Second))
	require.Equal(t, first, condition(t, pod.Status, v1.PodReady), "without a change the time stays")

	pod.Status = kubelet.NextPodStatus(pod, host, epoch().Add(5*time.Second))
	last := condition(t, pod.Status, v1.PodReady)
	require.Equal(t, v1.ConditionTrue, last.Status)
	require.True(t, last.LastTransitionTime.After(first.LastTransitionTime.Time))
	require.Equal(t, initialized, condition(t, pod.Status, v1.PodInitialized))
}

func condition(t *testing.T, status v1.PodStatus, kind v1.PodConditionType) v1.PodCondition {
	t.Helper()
	for _, c := range status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	require.Fail(t, "no condition "+string(kind))
	return v1.PodCondition{}
}

func TestHealthyPodHasNoNextStep(t *testing.T) {
	t.Parallel()
	pod := newPod("x")
	pod.Status = kubelet.NextPodStatus(pod, host, epoch())
	require.Equal(t, pod.Status, kubelet.NextPodStatus(pod, host, epoch().Add(time.Hour)))
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	one, two := newPod("x"), newPod("x")
	two.UID = "u2"
	a, b := kubelet.NextPodStatus(one, host, epoch()).PodIP, kubelet.NextPodStatus(two, host, epoch()).PodIP
	require.NotEqual(t, a, b)
	require.Equal(t, a, kubelet.NextPodStatus(one, host, epoch().Add(time.Hour)).PodIP)
	one.Spec.HostNetwork = true
	require.Equal(t, host, kubelet.NextPodStatus(one, host, epoch()).PodIP)
}

func TestFaultOfImage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fault    kubelet.Fault
		duration time.Duration
	}{
		"nginx":                                      {},
		"registry.example:5000/team/ide:9":           {},
		"registry.example/crash-loop/ide:9":          {}, // only the last part of the name counts
		"registry.example/missing":                   {fault: kubelet.ImagePullError},
		"registry.example/missing-link:1":            {},
		"registry.example:5000/ide:does-not-exist":   {fault: kubelet.ImagePullError},
		"my-crash-loop-app@sha256:00":                {fault: kubelet.CrashLoop},
		"create-container-config-error:1":            {fault: kubelet.CreateContainerConfigError},
		"registry.example/slow-start:1m30s":          {fault: kubelet.SlowStart, duration: 90 * time.Second},
		"registry.example/slow-start:-3s":            {fault: kubelet.SlowStart},
		"registry.example/team/unschedulable:latest": {fault: kubelet.Unschedulable},
	}
	for image, want := range tests {
		fault, duration := kubelet.FaultOfImage(image)
		require.Equal(t, want.fault, fault, image)
		require.Equal(t, want.duration, duration, image)
	}
}

func FuzzFaultOfImage(f *testing.F) {
	for _, seed := range []string{"", ":", "@", "/", "a/b:c@d", "slow-start:9999999h"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, image string) {
		_, duration := kubelet.FaultOfImage(image)
		require.GreaterOrEqual(t, duration, time.Duration(0))
	})
}
