package kubelet

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// AgentAnnotation is the annotation of the pods with a workspace agent. Its value is the name of the container in which
// the agent runs.
const AgentAnnotation = "lockstep.dev/workspace-agent"

// Exit is the end of a process.
type Exit struct {
	Code int32
	// Message is what the process has written to its termination log.
	Message           string
	Started, Finished time.Time
}

// Observation is what is known about a container that runs as a process. The zero value is a container that is being
// created.
type Observation struct {
	// Running is the time at which the process has started; zero if none runs.
	Running time.Time
	Ready   bool
	// Ended is the end of a process that is not started again at once.
	Ended *Exit
	// Reason and Message tell why a container waits. The reason defaults to ContainerCreating.
	Reason, Message string
	Restarts        int32
	// Last is the end of the process before.
	Last *Exit
}

// ObservedPodStatus returns the status of a pod whose containers run as processes.
func ObservedPodStatus(
	pod *v1.Pod, now time.Time, observe func(container string) Observation,
) v1.PodStatus {
	return podStatus(pod, hostAddress(pod.Spec.NodeName), now, func(c container) v1.ContainerStatus {
		return c.observed(observe(c.spec.Name))
	})
}

// ProcessAddress returns the address of this machine that the processes of a pod listen on: the address of the pod with
// 127 as its first number.
func ProcessAddress(pod *v1.Pod) string { return addressIn(pod, 127) }

// BackOff returns the delay before a container is started again after n restarts.
func BackOff(restarts int32) time.Duration {
	if restarts >= 6 {
		return maxBackOff
	}
	return min(time.Second<<max(restarts-1, 0), maxBackOff)
}

// WaitForRestart returns reason and message of a container that waits for its next start.
func WaitForRestart(pod *v1.Pod, container string, delay time.Duration) (reason, message string) {
	return reasonCrashLoopBackOff, crashLoopMessage(pod, container, delay)
}

// ConfigError is the reason of a container whose config map or secret is missing.
const ConfigError = reasonCreateConfigError

func (c container) observed(o Observation) v1.ContainerStatus {
	s := c.base()
	s.RestartCount, s.Ready, s.Started = o.Restarts, false, new(false)
	s.State, s.LastTerminationState = v1.ContainerState{}, v1.ContainerState{}
	if o.Last != nil {
		s.LastTerminationState.Terminated = c.exit(*o.Last, o.Restarts-1)
	}
	switch {
	case o.Ended != nil:
		s.State.Terminated = c.exit(*o.Ended, o.Restarts)
		s.Ready = c.init && o.Ended.Code == 0
	case !o.Running.IsZero():
		s.Ready, s.Started = o.Ready, new(true)
		s.State.Running = &v1.ContainerStateRunning{StartedAt: wholeSecond(o.Running)}
	default:
		reason := o.Reason
		if reason == "" {
			reason = reasonContainerCreating
		}
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: reason, Message: o.Message}
		return s
	}
	s.ImageID, s.ContainerID = imageID(c.spec.Image), c.containerID(o.Restarts)
	return s
}

func (c container) exit(e Exit, restarts int32) *v1.ContainerStateTerminated {
	reason := "Completed"
	if e.Code != 0 {
		reason = "Error"
	}
	return &v1.ContainerStateTerminated{
		ExitCode: e.Code, Reason: reason, Message: e.Message, ContainerID: c.containerID(max(restarts, 0)),
		StartedAt: wholeSecond(e.Started), FinishedAt: wholeSecond(e.Finished),
	}
}
