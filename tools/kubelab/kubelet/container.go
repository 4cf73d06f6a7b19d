package kubelet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons as kubelets write them.
const (
	reasonContainerCreating       = "ContainerCreating"
	reasonPodInitializing         = "PodInitializing"
	reasonErrImagePull            = "ErrImagePull"
	reasonImagePullBackOff        = "ImagePullBackOff"
	reasonCrashLoopBackOff        = "CrashLoopBackOff"
	reasonRunContainerError       = "RunContainerError"
	reasonCreateError             = "CreateContainerError"
	reasonCreateConfigError       = "CreateContainerConfigError"
	maxBackOff                    = 30 * time.Second
	exitError               int32 = 1
	exitStart               int32 = 128
	exitKilled              int32 = 137
)

// container is one container of a pod at one step.
type container struct {
	pod  *v1.Pod
	spec *v1.Container
	init bool
	at   time.Time   // now, exactly
	now  metav1.Time // now, as the API keeps it
	old  v1.ContainerStatus
}

// next moves the container one step.
func (c container) next() v1.ContainerStatus {
	switch fault := faultOf(c.pod, c.spec, c.init, c.at); fault {
	case SlowStart:
		if c.old.State.Running != nil {
			return c.running(true)
		}
		return c.waiting(reasonContainerCreating, "")
	case NotReady:
		return c.running(false)
	case CrashLoop:
		return c.crash("Error", exitError)
	case OutOfMemory:
		return c.crash("OOMKilled", exitKilled)
	case ImagePullError, ImagePullDenied:
		return c.pull(fault)
	case CreateContainerError:
		return c.create(reasonCreateError,
			fmt.Sprintf("failed to generate container %q spec: failed to generate spec: no command specified", c.id()))
	case CreateContainerConfigError:
		return c.create(reasonCreateConfigError, fmt.Sprintf("secret %q not found", c.spec.Name+"-config"))
	case RunContainerError:
		return c.runError()
	case NoFault, Unschedulable, StuckTerminating:
		return c.healthy()
	default:
		return c.healthy()
	}
}

// healthy runs the container: init containers and jobs to their end, others for ever.
func (c container) healthy() v1.ContainerStatus {
	ends := c.init && !c.sidecar()
	switch {
	case c.old.State.Terminated != nil && (ends || c.ofJob()) && c.old.State.Terminated.ExitCode == 0:
		return c.old
	case ends, c.ofJob() && c.old.State.Running != nil && c.old.Ready:
		return c.terminated("Completed", 0, "")
	default:
		return c.running(true)
	}
}

// crash cycles through running, terminated, CrashLoopBackOff. As with a kubelet, the first restart is immediate.
func (c container) crash(reason string, code int32) v1.ContainerStatus {
	switch {
	case c.old.State.Running != nil && c.old.RestartCount > 0 && c.restarts():
		return c.backOff(reason, code, "")
	case c.old.State.Running != nil:
		return c.terminated(reason, code, "")
	case c.old.State.Terminated != nil && !c.restarts():
		return c.old
	default:
		return c.running(false)
	}
}

// runError cycles through a failed start and waiting for the back-off to pass.
func (c container) runError() v1.ContainerStatus {
	message := fmt.Sprintf("failed to create containerd task: failed to create shim task: OCI runtime create failed: "+
		"runc create failed: unable to start container process: error during container init: exec: %q: "+
		"stat %s: no such file or directory: unknown", "/missing", "/missing")
	if c.old.State.Waiting != nil && c.old.State.Waiting.Reason == reasonRunContainerError {
		if !c.restarts() {
			return c.terminated("StartError", exitStart, message)
		}
		return c.backOff("StartError", exitStart, message)
	}
	if c.old.State.Running != nil {
		return c.running(true)
	}
	s := c.waiting(reasonRunContainerError, message)
	if s.LastTerminationState.Terminated != nil {
		s.RestartCount++
	}
	return s
}

// pull alternates between a failed pull and waiting for the next attempt. A
// running container has its image already.
func (c container) pull(fault Fault) v1.ContainerStatus {
	if c.old.State.Running != nil {
		return c.running(true)
	}
	cause := fmt.Sprintf("rpc error: code = NotFound desc = failed to pull and unpack image %q: "+
		"failed to resolve reference %q: %s: not found", c.spec.Image, c.spec.Image, c.spec.Image)
	if fault == ImagePullDenied {
		cause = fmt.Sprintf("failed to pull and unpack image %q: failed to resolve reference %q: "+
			"pull access denied, repository does not exist or may require authorization: "+
			"authorization failed: no basic auth credentials: 403 Forbidden", c.spec.Image, c.spec.Image)
	}
	if c.old.State.Waiting != nil && c.old.State.Waiting.Reason == reasonErrImagePull {
		return c.waiting(reasonImagePullBackOff,
			fmt.Sprintf("Back-off pulling image %q: %s: %s", c.spec.Image, reasonErrImagePull, cause))
	}
	return c.waiting(reasonErrImagePull, cause)
}

func (c container) create(reason, message string) v1.ContainerStatus {
	if c.old.State.Running != nil {
		return c.running(true)
	}
	return c.waiting(reason, message)
}

// running starts the container, or keeps it running.
func (c container) running(ready bool) v1.ContainerStatus {
	s := c.base()
	s.Ready, s.Started = ready, new(ready)
	if s.State.Running == nil {
		if s.State.Terminated != nil {
			s.LastTerminationState = v1.ContainerState{Terminated: s.State.Terminated}
		}
		if s.LastTerminationState.Terminated != nil {
			s.RestartCount++
		}
		s.State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: c.now}}
	}
	s.ImageID = imageID(c.spec.Image)
	s.ContainerID = c.containerID(s.RestartCount)
	return s
}

// terminated ends the container.
func (c container) terminated(reason string, code int32, message string) v1.ContainerStatus {
	s := c.base()
	s.Ready, s.Started = code == 0 && c.init, new(false)
	s.State = v1.ContainerState{Terminated: c.termination(reason, code, message)}
	s.ImageID, s.ContainerID = imageID(c.spec.Image), s.State.Terminated.ContainerID
	return s
}

// backOff ends the container and waits before the next start.
func (c container) backOff(reason string, code int32, message string) v1.ContainerStatus {
	ended := c.termination(reason, code, message)
	delay := BackOff(c.old.RestartCount)
	s := c.waiting(reasonCrashLoopBackOff, crashLoopMessage(c.pod, c.spec.Name, delay))
	s.LastTerminationState = v1.ContainerState{Terminated: ended}
	return s
}

func crashLoopMessage(pod *v1.Pod, container string, delay time.Duration) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
		strconv.Itoa(int(delay.Seconds()))+"s", container, pod.Name, pod.Namespace, pod.UID)
}

func (c container) waiting(reason, message string) v1.ContainerStatus {
	s := c.base()
	s.Ready, s.Started = false, new(false)
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}
	return s
}

func (c container) base() v1.ContainerStatus {
	s := *c.old.DeepCopy()
	s.Name, s.Image = c.spec.Name, c.spec.Image
	return s
}

func (c container) termination(reason string, code int32, message string) *v1.ContainerStateTerminated {
	started := c.now
	if c.old.State.Running != nil {
		started = c.old.State.Running.StartedAt
	}
	return &v1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, Message: message,
		StartedAt: started, FinishedAt: c.now, ContainerID: c.containerID(c.old.RestartCount),
	}
}

func (c container) sidecar() bool {
	return c.init && c.spec.RestartPolicy != nil && *c.spec.RestartPolicy == v1.ContainerRestartPolicyAlways
}

func (c container) restarts() bool {
	return c.sidecar() || c.pod.Spec.RestartPolicy != v1.RestartPolicyNever
}

func (c container) ofJob() bool {
	owner := metav1.GetControllerOf(c.pod)
	return !c.init && owner != nil && owner.Kind == "Job"
}

func (c container) id() string {
	return digest(string(c.pod.UID) + "/" + c.spec.Name)
}

func (c container) containerID(restarts int32) string {
	return "containerd://" + digest(fmt.Sprintf("%s/%s/%d", c.pod.UID, c.spec.Name, restarts))
}

func imageID(image string) string { return "sha256:" + digest(image) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
