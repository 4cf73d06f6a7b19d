package rollout

import "lockstep.internal/schemas/gen/events"

// What a workload can be.
const (
	// Running towards its template: a rollout is in flight, or about to begin.
	Running = "running"
	// Completed says that the template is rolled out. Scaling and pods that fail later do not change that.
	Completed = "completed"
	// Failed says that the rollout in flight has stalled.
	Failed = "failed"
)

// Standing of a workload, for those who judge several together.
type Standing struct {
	// State is [Running], [Completed] or [Failed]; empty while nothing is known of the workload, or it is gone.
	State string
	// Gone says that it was deleted, Unselected that it is only not followed any more.
	Gone, Unselected bool
	// RolloutID of the newest rollout that was told, in flight or not; empty when there was none.
	RolloutID string
	// Reconstructed says that it was concluded, not seen.
	Reconstructed bool
	// Labels, annotations (those of the template over the workload's own) and images as they are now.
	Labels, Annotations map[string]string
	Images              []events.Image
}

// Standing of the workload.
func (s State) Standing() Standing {
	v := s.View
	if v == nil {
		return Standing{Gone: s.Gone, Unselected: s.Unselected}
	}
	standing := Standing{State: Completed, Reconstructed: v.blind(), Labels: v.Labels, Annotations: v.Annotations, Images: v.Template.Images}
	if s.Rollout != nil {
		standing.RolloutID = s.Rollout.ID
	}
	pending := v.Template.known() && s.Template.known() && !v.Template.same(s.Template)
	switch {
	case s.InFlight() && s.Rollout.Stalled != "":
		standing.State = Failed
	case s.InFlight(), pending, len(s.Waiting) > 0, s.Last == 0 && s.Rollout == nil:
		standing.State = Running
	}
	return standing
}
