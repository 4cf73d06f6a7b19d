package kubelet

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Fault is an injected failure of a pod.
type Fault string

// The faults. The annotation FaultAnnotation selects a fault for all containers of a pod. An image
// name that contains a fault selects it for one container.
const (
	NoFault Fault = ""
	// SlowStart keeps a container in ContainerCreating for the fault's duration, 10 s by default.
	SlowStart Fault = "slow-start"
	// NotReady runs a container that never becomes ready.
	NotReady Fault = "not-ready"
	// CrashLoop ends a container with exit code 1 soon after each start.
	CrashLoop Fault = "crash-loop"
	// OutOfMemory is CrashLoop by the kernel: OOMKilled, exit code 137.
	OutOfMemory Fault = "oom-killed"
	// ImagePullError fails every image pull with "not found". Images named "missing" or tagged
	// "does-not-exist" have it too.
	ImagePullError Fault = "image-pull-error"
	// ImagePullDenied fails every image pull with "403 Forbidden".
	ImagePullDenied Fault = "image-pull-denied"
	// CreateContainerError fails before the container exists.
	CreateContainerError Fault = "create-container-error"
	// CreateContainerConfigError fails on a reference to an absent Secret.
	CreateContainerConfigError Fault = "create-container-config-error"
	// RunContainerError fails when the container's command is started.
	RunContainerError Fault = "run-container-error"
	// Unschedulable keeps the pod from being scheduled.
	Unschedulable Fault = "unschedulable"
	// StuckTerminating keeps a deleted pod until the fault goes away.
	StuckTerminating Fault = "stuck-terminating"
)

const (
	// FaultAnnotation names the fault of a pod.
	FaultAnnotation = "kubelab.lockstep.dev/fault"
	// FaultDurationAnnotation is a Go duration; the fault ends this long after the pod's start time;
	// StuckTerminating counts from the deletion. Without it, or an image tag that is a duration, a fault stays
	// (SlowStart: 10 s). Unschedulable has no duration.
	FaultDurationAnnotation = "kubelab.lockstep.dev/fault-duration"
)

const defaultSlowStart = 10 * time.Second

func faults() []Fault {
	return []Fault{
		SlowStart, NotReady, CrashLoop, OutOfMemory, ImagePullError, ImagePullDenied,
		CreateContainerConfigError, CreateContainerError, RunContainerError, Unschedulable, StuckTerminating,
	}
}

// FaultOfImage returns the fault that an image reference selects, and its duration if the tag is one
// ("registry.example/slow-start:20s").
func FaultOfImage(image string) (Fault, time.Duration) {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, tag, _ := strings.Cut(name, ":")
	duration, err := time.ParseDuration(tag)
	if err != nil || duration < 0 {
		duration = 0
	}
	if name == "missing" || tag == "does-not-exist" {
		return ImagePullError, duration
	}
	for _, f := range faults() {
		if strings.Contains(name, string(f)) {
			return f, duration
		}
	}
	return NoFault, 0
}

// IsUnschedulable reports whether the pod has the fault Unschedulable.
func IsUnschedulable(pod *v1.Pod) bool {
	if Fault(pod.Annotations[FaultAnnotation]) == Unschedulable {
		return true
	}
	return slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		f, _ := FaultOfImage(c.Image)
		return f == Unschedulable
	})
}

// faultOf returns the fault of one container at now. The annotation applies to app containers; init containers
// have the faults of their images.
func faultOf(pod *v1.Pod, c *v1.Container, init bool, now time.Time) Fault {
	fault, duration := FaultOfImage(c.Image)
	if annotated := Fault(pod.Annotations[FaultAnnotation]); annotated != NoFault && !init {
		fault, duration = annotated, 0
	}
	if d, err := time.ParseDuration(pod.Annotations[FaultDurationAnnotation]); err == nil {
		duration = d
	}
	if duration == 0 && fault == SlowStart {
		duration = defaultSlowStart
	}
	if duration > 0 && pod.Status.StartTime != nil && now.Sub(pod.Status.StartTime.Time) >= duration {
		return NoFault
	}
	return fault
}
