package e2e_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func annotated(template v1.PodTemplateSpec, pairs ...string) v1.PodTemplateSpec {
	template.Annotations = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		template.Annotations["kubelab.lockstep.dev/"+pairs[i]] = pairs[i+1]
	}
	return template
}

func waits(reason, message string) func(v1.ContainerStatus) bool {
	return func(s v1.ContainerStatus) bool {
		return !s.Ready && s.State.Waiting != nil && s.State.Waiting.Reason == reason &&
			(message == "" || s.State.Waiting.Message == message)
	}
}

func loops(reason string, exitCode, restarts int32) func(v1.ContainerStatus) bool {
	return func(s v1.ContainerStatus) bool {
		last := s.LastTerminationState.Terminated
		return waits("CrashLoopBackOff", "")(s) && s.RestartCount >= restarts &&
			last != nil && last.Reason == reason && last.ExitCode == exitCode && !last.FinishedAt.IsZero()
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	const image = "registry.example/ide:9"
	notFound := `rpc error: code = NotFound desc = failed to pull and unpack image "registry.example/ide:does-not-exist": ` +
		`failed to resolve reference "registry.example/ide:does-not-exist": registry.example/ide:does-not-exist: not found`
	tests := map[string]struct {
		template v1.PodTemplateSpec
		// steps are passed through in this order.
		steps []func(v1.ContainerStatus) bool
	}{
		"image pull error": {podSpec("registry.example/ide:does-not-exist"), []func(v1.ContainerStatus) bool{
			waits("ImagePullBackOff", `Back-off pulling image "registry.example/ide:does-not-exist": ErrImagePull: `+notFound),
			waits("ErrImagePull", notFound),
		}},
		"image named missing": {
			podSpec("registry.example/missing:1"),
			[]func(v1.ContainerStatus) bool{waits("ImagePullBackOff", "")},
		},
		"image pull denied": {
			podSpec("registry.example/image-pull-denied"),
			[]func(v1.ContainerStatus) bool{waits("ImagePullBackOff", "")},
		},
		"crash loop": {
			podSpec("registry.example/crash-loop:1"),
			[]func(v1.ContainerStatus) bool{loops("Error", 1, 1), loops("Error", 1, 3)},
		},
		"out of memory": {
			annotated(podSpec(image), "fault", "oom-killed"),
			[]func(v1.ContainerStatus) bool{loops("OOMKilled", 137, 1)},
		},
		"create error": {
			annotated(podSpec(image), "fault", "create-container-error"),
			[]func(v1.ContainerStatus) bool{waits("CreateContainerError", "")},
		},
		"create config error": {
			annotated(podSpec(image), "fault", "create-container-config-error"),
			[]func(v1.ContainerStatus) bool{waits("CreateContainerConfigError", "")},
		},
		"run error": {
			annotated(podSpec(image), "fault", "run-container-error"),
			[]func(v1.ContainerStatus) bool{waits("RunContainerError", ""), loops("StartError", 128, 1)},
		},
		"never ready": {annotated(podSpec(image), "fault", "not-ready"), []func(v1.ContainerStatus) bool{
			func(s v1.ContainerStatus) bool { return !s.Ready && s.State.Running != nil },
		}},
		"no fault": {podSpec(image), []func(v1.ContainerStatus) bool{isReady}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			deploy(t, c, "app", 1, test.template)
			for i, step := range test.steps {
				awaitContainer(t, c, "step "+string(rune('0'+i)), step)
			}
		})
	}
}

// awaitContainer waits until the deployment app has one pod, and its container has the status.
func awaitContainer(t *testing.T, c cluster, what string, has func(v1.ContainerStatus) bool) {
	t.Helper()
	eventually(t, what, func(context.Context) bool {
		pods := podsOf(t, c, "app")
		return len(pods) == 1 && len(pods[0].Status.ContainerStatuses) == 1 && has(pods[0].Status.ContainerStatuses[0])
	})
}

// TestFaultEndsAfterItsDuration shortens the duration once it has seen the fault, which may be late.
func TestFaultEndsAfterItsDuration(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		template v1.PodTemplateSpec
		fault    func(v1.ContainerStatus) bool
	}{
		"slow start": {
			annotated(podSpec("registry.example/ide:9"), "fault", "slow-start", "fault-duration", "1h"),
			waits("ContainerCreating", ""),
		},
		"slow start by image": {podSpec("registry.example/slow-start:1h"), waits("ContainerCreating", "")},
		"crash loop by image": {podSpec("registry.example/crash-loop:1h"), loops("Error", 1, 1)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			deploy(t, c, "app", 1, test.template)
			awaitContainer(t, c, "the fault", test.fault)
			annotate(t, c, podsOf(t, c, "app")[0].Name, "fault-duration", `"1ms"`)
			awaitContainer(t, c, "the container is ready", isReady)
		})
	}
}

func isReady(s v1.ContainerStatus) bool { return s.Ready && s.State.Running != nil }

func TestUpdateFixesFaultyImage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deploy(t, c, "ide", 1, podSpec("registry.example/ide:does-not-exist"))
	eventually(t, "the rollout misses its deadline", func(ctx context.Context) bool {
		d, err := c.AppsV1().Deployments(c.namespace).Get(ctx, "ide", metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range d.Status.Conditions {
			if condition.Type == appsv1.DeploymentProgressing && condition.Reason == "ProgressDeadlineExceeded" {
				return true
			}
		}
		return false
	})
	_, err := c.AppsV1().Deployments(c.namespace).Patch(t.Context(), "ide", types.JSONPatchType,
		[]byte(
			`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"registry.example/ide:9"}]`,
		), metav1.PatchOptions{})
	require.NoError(t, err)
	awaitAvailable(t, c, "ide", 1)
}

func TestFaultStartsAndEndsOnRunningPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deploy(t, c, "app", 1, podSpec("nginx:1"))
	awaitAvailable(t, c, "app", 1)
	annotate(t, c, podsOf(t, c, "app")[0].Name, "fault", `"crash-loop"`)
	eventually(t, "the pod crashes", func(context.Context) bool {
		pod := podsOf(t, c, "app")[0]
		return loops("Error", 1, 1)(pod.Status.ContainerStatuses[0]) && pod.Status.Phase == v1.PodRunning
	})
	annotate(t, c, podsOf(t, c, "app")[0].Name, "fault", "null")
	awaitAvailable(t, c, "app", 1)
}

// annotate sets an annotation to a JSON value.
func annotate(t *testing.T, c cluster, pod, name, value string) {
	t.Helper()
	_, err := c.CoreV1().Pods(c.namespace).Patch(t.Context(), pod, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"kubelab.lockstep.dev/`+name+`":`+value+`}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

func TestPodIsScheduledAfterFaultEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deploy(t, c, "app", 1, annotated(podSpec("nginx:1"), "fault", "unschedulable"))
	eventually(t, "the pod has the Unschedulable condition", func(context.Context) bool {
		for _, pod := range podsOf(t, c, "app") {
			for _, condition := range pod.Status.Conditions {
				if condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable {
					require.Contains(t, condition.Message, "0/2 nodes are available")
					return pod.Spec.NodeName == ""
				}
			}
		}
		return false
	})
	annotate(t, c, podsOf(t, c, "app")[0].Name, "fault", "null")
	awaitAvailable(t, c, "app", 1)
}

func TestStuckPodIsDeletedAfterFaultEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deploy(t, c, "stuck", 1, annotated(podSpec("nginx:1"), "fault", "stuck-terminating"))
	deploy(t, c, "slow", 1, annotated(podSpec("nginx:1"), "fault", "stuck-terminating", "fault-duration", "1s"))
	awaitAvailable(t, c, "stuck", 1)
	awaitAvailable(t, c, "slow", 1)
	name := podsOf(t, c, "stuck")[0].Name
	scale(t, c, "stuck", 0)
	scale(t, c, "slow", 0)
	eventually(t, "the pod with a duration goes", func(context.Context) bool { return len(podsOf(t, c, "slow")) == 0 })
	gone := func() bool {
		_, err := c.CoreV1().Pods(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	require.Never(t, gone, settle, tick, "the pod stays")
	annotate(t, c, name, "fault", "null")
	eventually(t, "the other goes", func(context.Context) bool { return gone() })
}

func TestFaultOfInitContainerBlocksPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	template := podSpec("nginx:1")
	template.Spec.InitContainers = []v1.Container{{Name: "clone", Image: "registry.example/crash-loop:1h"}}
	deploy(t, c, "app", 1, template)
	eventually(t, "the init container crashes", func(context.Context) bool {
		pods := podsOf(t, c, "app")
		return len(pods) == 1 && len(pods[0].Status.InitContainerStatuses) == 1 &&
			loops("Error", 1, 1)(pods[0].Status.InitContainerStatuses[0]) &&
			waits("PodInitializing", "")(pods[0].Status.ContainerStatuses[0]) && pods[0].Status.Phase == v1.PodPending
	})
	annotate(t, c, podsOf(t, c, "app")[0].Name, "fault-duration", `"1ms"`)
	awaitAvailable(t, c, "app", 1)
}
