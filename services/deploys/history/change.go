package history

import (
	"encoding/json"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// States of rollouts.
const (
	Running    = "running"
	Completed  = string(events.FactCompleted)
	Superseded = string(events.FactSuperseded)
	Cancelled  = string(events.FactCancelled)
	Unknown    = string(events.FactUnknown)
)

// AnnotationCommit names the commit of a workload.
const AnnotationCommit = "lockstep.dev/commit"

// Rollout is a row of the history, or an update of one. In an update, nil fields keep the stored value.
type Rollout struct {
	ID                string            `json:"id"`
	Workload          string            `json:"workload"`
	ClusterUID        string            `json:"cluster_uid"`
	AgentID           int64             `json:"agent_id"`
	Namespace         string            `json:"namespace"`
	Kind              string            `json:"kind"`
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	Revision          int64             `json:"revision"`
	TemplateHash      string            `json:"template_hash"`
	Change            string            `json:"change"`
	OfRevision        int64             `json:"of_revision"`
	Strategy          string            `json:"strategy"`
	Images            []events.Image    `json:"images"`
	PreviousImages    []events.Image    `json:"previous_images"`
	Labels            map[string]string `json:"labels"`
	Commit            string            `json:"commit_sha"`
	Group             string            `json:"deploy_group"`
	StartedAt         time.Time         `json:"started_at"`
	StartedObservedAt time.Time         `json:"started_observed_at"`
	ReplicasAtStart   int               `json:"replicas_at_start"`
	ScaledDuring      bool              `json:"scaled_during"`
	LastSequence      int64             `json:"last_sequence"`
	UpdatedAt         time.Time         `json:"updated_at"`
	// WorkloadDeleted is true if the workload does not exist any more. It is only read, not stored in the row.
	WorkloadDeleted bool `json:"-"`

	FirstSequence       *int64         `json:"first_sequence,omitempty"`
	State               *string        `json:"state,omitempty"`
	EndedAt             *time.Time     `json:"ended_at,omitempty"`
	EndedObservedAt     *time.Time     `json:"ended_observed_at,omitempty"`
	DrainedAt           *time.Time     `json:"drained_at,omitempty"`
	DurationMs          *int64         `json:"duration_ms,omitempty"`
	Counts              *events.Counts `json:"counts,omitempty"`
	Stalled             *bool          `json:"stalled,omitempty"`
	Blocked             *bool          `json:"blocked,omitempty"`
	Paused              *bool          `json:"paused,omitempty"`
	WasStalledOrBlocked *bool          `json:"troubled,omitempty"`
	Reconstructed       *bool          `json:"reconstructed,omitempty"`
	Reason              *string        `json:"reason,omitempty"`
	Message             *string        `json:"message,omitempty"`
	SupersededBy        *string        `json:"superseded_by,omitempty"`
}

// Rules configure the history.
type Rules struct {
	// GroupLabel is the label or annotation that names the environment of a workload.
	GroupLabel string
}

// Changes returns one change per rollout, in the order of their first facts. workload is the id of the workload of the
// facts.
func (rules Rules) Changes(workload string, facts []*events.DeployFact) []Rollout {
	var out []Rollout
	at := map[string]int{}
	for _, f := range facts {
		if f.Rollout == nil {
			continue
		}
		n, known := at[f.Rollout.ID]
		if !known {
			n = len(out)
			at[f.Rollout.ID] = n
			out = append(out, Rollout{ID: f.Rollout.ID, Workload: workload})
		}
		rules.apply(&out[n], f)
	}
	return out
}

// MarshalRows encodes changes for the database.
func MarshalRows(changes []Rollout) ([]byte, error) {
	return json.Marshal(changes) //nolint:wrapcheck // the caller wraps it
}

func (rules Rules) apply(row *Rollout, f *events.DeployFact) {
	rules.describe(row, f)
	switch f.Fact {
	case events.FactStarted:
		sequence := int64(f.Sequence)
		row.FirstSequence, row.State = &sequence, new(Running)
		row.Stalled, row.Blocked, row.Paused = new(false), new(false), new(false)
	case events.FactStalled:
		row.Stalled, row.WasStalledOrBlocked = new(true), new(true)
	case events.FactRecovered:
		row.Stalled = new(false)
	case events.FactBlocked:
		row.Blocked, row.WasStalledOrBlocked = new(true), new(true)
	case events.FactUnblocked:
		row.Blocked = new(false)
	case events.FactPaused:
		row.Paused = new(true)
	case events.FactResumed:
		row.Paused = new(false)
	case events.FactDrained:
		row.DrainedAt = new(f.OccurredAt)
	case events.FactCompleted, events.FactSuperseded, events.FactCancelled, events.FactUnknown:
		row.end(f)
	default: // changes no state
	}
	row.explain(f)
}

// describe sets the columns that every fact of a rollout determines.
func (rules Rules) describe(row *Rollout, f *events.DeployFact) {
	w, r := &f.Workload, f.Rollout
	row.ClusterUID, row.AgentID, row.Namespace, row.Kind, row.Name, row.UID = w.ClusterUID, int64(w.AgentID),
		w.Namespace, w.Kind, w.Name, w.UID
	row.Revision, row.TemplateHash, row.OfRevision, row.Strategy = int64(r.Revision), r.TemplateHash,
		int64(r.OfRevision), r.Strategy
	row.Change = string(r.Change)
	row.Images, row.PreviousImages = nonNil(r.Images), nonNil(r.PreviousImages)
	row.Labels = w.Labels
	if row.Labels == nil {
		row.Labels = map[string]string{}
	}
	row.Commit = w.Annotations[AnnotationCommit]
	if row.Group = w.Labels[rules.GroupLabel]; row.Group == "" {
		row.Group = w.Annotations[rules.GroupLabel]
	}
	row.StartedAt, row.StartedObservedAt = f.OccurredAt, f.ObservedAt
	if r.StartedAt != nil {
		row.StartedAt = *r.StartedAt
	}
	if r.StartedObservedAt != nil {
		row.StartedObservedAt = *r.StartedObservedAt
	}
	row.ReplicasAtStart, row.ScaledDuring = r.ReplicasAtStart, r.ScaledDuring
	row.LastSequence, row.UpdatedAt = int64(f.Sequence), f.ObservedAt
	if f.Counts != nil {
		row.Counts = f.Counts
	}
	if f.Provenance == events.ProvenanceReconstructed {
		row.Reconstructed = new(true)
	}
	if r.SupersededBy != "" {
		row.SupersededBy = new(r.SupersededBy)
	}
}

func (r *Rollout) end(f *events.DeployFact) {
	r.State, r.EndedAt, r.EndedObservedAt = new(string(f.Fact)), new(f.OccurredAt), new(f.ObservedAt)
	r.Stalled, r.Blocked, r.Paused = new(false), new(false), new(false)
	if f.DurationMs != nil {
		r.DurationMs = new(int64(*f.DurationMs))
	}
}

// explain keeps the last reason. The facts progressed and drained have none.
func (r *Rollout) explain(f *events.DeployFact) {
	if f.Fact == events.FactProgressed || f.Fact == events.FactDrained {
		return
	}
	r.Reason, r.Message = new(f.Reason), new(f.Message)
}

func nonNil(images []events.Image) []events.Image {
	if images == nil {
		return []events.Image{}
	}
	return images
}
