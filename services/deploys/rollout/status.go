package rollout

import "lockstep.internal/schemas/gen/events"

// States of a workload.
const (
	// Running: a rollout is in flight or about to start.
	Running = "running"
	// Completed: the newest template is rolled out. Scaling and later pod failures do not change this state.
	Completed = "completed"
	// Failed: the rollout in flight has stalled or is blocked, or a new ReplicaSet cannot be created.
	Failed = "failed"
)

// Status is the status of a workload for package environment.
type Status struct {
	// State is [Running], [Completed] or [Failed]; empty for an unknown or deleted workload.
	State string
	// Message explains [Failed].
	Message string
	// Gone: the workload was deleted. Unselected: it exists but the watcher does not follow it.
	Gone, Unselected bool
	// RolloutID of the newest rollout, in flight or ended; empty for none.
	RolloutID string
	// Reconstructed reports that changes before the newest view were not observed.
	Reconstructed bool
	// Labels, Annotations and Images of the newest view. Annotations of the template override those of the workload.
	Labels, Annotations map[string]string
	Images              []events.Image
}

// Status returns the status of the workload for package environment.
func (s State) Status() Status {
	v := s.View
	if v == nil {
		return Status{Gone: s.Gone, Unselected: s.Unselected}
	}
	status := Status{
		State: Completed, Reconstructed: v.afterGap(), Labels: v.Labels, Annotations: v.Annotations,
		Images: v.Template.Images,
	}
	if s.Rollout != nil {
		status.RolloutID = s.Rollout.ID
	}
	pending := v.Template.known() && s.Template.known() && !v.Template.equals(s.Template)
	switch {
	case v.Progress.Reason == reasonCreateError, s.InFlight() && s.Rollout.Blocked:
		status.State = Failed
		_, status.Message = v.refusal()
	case s.InFlight() && s.Rollout.isStuck(*v):
		status.State, status.Message = Failed, s.Rollout.Message
	case s.InFlight(), pending, len(s.Waiting) > 0, s.Last == 0 && s.Rollout == nil:
		status.State = Running
	}
	return status
}
