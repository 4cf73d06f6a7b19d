package endpoint

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	// interval is the time between two lines of a log.
	interval = time.Second
	// maxLines is the number of the last lines of a log that can be read.
	maxLines = 1000
)

// Run is one run of a container, from its start to its end.
type Run struct {
	Namespace, Pod, Container, Image string
	// ID identifies the run of a container.
	ID      string
	Started time.Time
	// Ended is the termination state; nil while the container runs.
	Ended *v1.ContainerStateTerminated
}

// Line is one line of a log.
type Line struct {
	Time time.Time
	Text string
}

// RunOf returns the current run of a container, or the last one; with previous, the one before it. The errors
// are those of a kubelet.
func RunOf(pod *v1.Pod, container string, previous bool) (Run, error) {
	status, err := statusOf(pod, container)
	if err != nil {
		return Run{}, err
	}
	run := Run{Namespace: pod.Namespace, Pod: pod.Name, Container: container, Image: status.Image}
	ended := status.LastTerminationState.Terminated
	switch {
	case previous && ended == nil:
		return Run{}, fmt.Errorf("previous terminated container %q in pod %q not found", container, pod.Name)
	case previous:
	case status.State.Running != nil:
		run.ID, run.Started = status.ContainerID, status.State.Running.StartedAt.Time
		return run, nil
	case status.State.Terminated != nil:
		ended = status.State.Terminated
	case ended == nil:
		reason := "ContainerCreating"
		if status.State.Waiting != nil {
			reason = status.State.Waiting.Reason
		}
		return Run{}, fmt.Errorf("container %q in pod %q is waiting to start: %s", container, pod.Name, reason)
	}
	run.ID, run.Started, run.Ended = ended.ContainerID, ended.StartedAt.Time, ended
	return run, nil
}

// statusOf returns the status of a container; only its name if it has none.
func statusOf(pod *v1.Pod, container string) (v1.ContainerStatus, error) {
	for _, status := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if status.Name == container {
			return status, nil
		}
	}
	for _, spec := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if spec.Name == container {
			return v1.ContainerStatus{Name: spec.Name, Image: spec.Image}, nil
		}
	}
	return v1.ContainerStatus{}, fmt.Errorf("container %q not found in pod %q", container, pod.Name)
}

// endIn reports whether the run has ended according to a later state of its pod. It returns the termination state if it
// is known.
func (r Run) endIn(pod *v1.Pod) (*v1.ContainerStateTerminated, bool) {
	status, err := statusOf(pod, r.Container)
	if err != nil {
		return nil, true
	}
	if status.State.Running != nil && status.ContainerID == r.ID {
		return nil, false
	}
	for _, state := range []v1.ContainerState{status.State, status.LastTerminationState} {
		if state.Terminated != nil && state.Terminated.ContainerID == r.ID {
			return state.Terminated, true
		}
	}
	return nil, true
}

// Count returns the number of lines that the run has printed by now.
func (r Run) Count(now time.Time) int {
	count := r.ticks(now) + 1
	if r.logsExit() {
		count++
	}
	return count
}

// Line returns the i-th line of the run, counted from 0. The last line of an ended run has the exit code.
func (r Run) Line(i int) Line {
	line := Line{Time: r.Started.Add(time.Duration(i) * interval), Text: fmt.Sprintf("line %d", i)}
	switch {
	case i == 0:
		line.Text = fmt.Sprintf("simulated container %s of pod %s/%s, image %s", r.Container, r.Namespace, r.Pod, r.Image)
	case r.logsExit() && i == r.ticks(r.Ended.FinishedAt.Time)+1:
		line = Line{Time: r.Ended.FinishedAt.Time, Text: fmt.Sprintf("exit code %d", r.Ended.ExitCode)}
	}
	return line
}

// logsExit reports whether the run logs its exit code. An OOM-killed container does not.
func (r Run) logsExit() bool { return r.Ended != nil && r.Ended.Reason != "OOMKilled" }

// ticks returns the number of complete intervals of the run.
func (r Run) ticks(now time.Time) int {
	if r.Ended != nil {
		now = r.Ended.FinishedAt.Time
	}
	return int(max(now.Sub(r.Started), 0) / interval)
}
