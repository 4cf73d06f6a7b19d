package rollout

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Bounds of a state.
const (
	maxCompleted = 20
	maxRevisions = 32
	maxPending   = 64
	maxWaiting   = 64
	maxTemplates = 8
	maxFormer    = 4
	maxGap       = 1000
)

// State is everything that is remembered of one workload. Its JSON has the same bytes for equal states. Store it as a whole; the fields are of use to
// readers only.
type State struct {
	Key Key `json:"key"`
	// Serial grows by 1 with each input that changed the state: a state of the same serial need not be stored again.
	Serial int `json:"serial,omitempty"`
	// Sequence of the last fact told.
	Sequence int `json:"sequence,omitempty"`

	// At is the time of the last input that changed the state.
	At time.Time `json:"at,omitzero"`
	// AgentID that told the newest observation.
	AgentID int64 `json:"agent_id,omitempty"`
	// Epoch and Version of the newest observation that was taken in; Tombstone says that it was a deletion.
	Epoch     int    `json:"epoch,omitempty"`
	Version   string `json:"version,omitempty"`
	Tombstone bool   `json:"tombstone,omitempty"`

	// Restored says that the cluster's resource versions began anew and the workload was not seen since.
	Restored bool `json:"restored,omitempty"`

	// UID of the object that is followed, or was last; Former are those before it.
	UID    string   `json:"uid,omitempty"`
	Former []string `json:"former,omitempty"`
	// Gone says that the object was deleted, Unselected that it is there but not followed any more.
	Gone       bool `json:"gone,omitempty"`
	Unselected bool `json:"unselected,omitempty"`
	// View is the newest observation that was judged; nil while nothing is followed.
	View *View `json:"view,omitempty"`
	// Waiting are observations that cannot be judged before a revision they speak of is known, in order.
	Waiting []View `json:"waiting,omitempty"`
	// WaitSince is the first tick since they wait.
	WaitSince time.Time `json:"wait_since,omitzero"`

	// Last revision that is accounted for, told or silent; with the name and hash of the object that keeps it, its template, and the workload's
	// generation when it was found.
	Last       int      `json:"last,omitempty"`
	Name       string   `json:"name,omitempty"`
	Hash       string   `json:"hash,omitempty"`
	Template   Template `json:"template,omitzero"`
	Generation int      `json:"generation,omitempty"`
	// Taken is the version in which a ReplicaSet took that revision, empty where nobody saw it.
	Taken string `json:"taken,omitempty"`
	// Unnumbered says that Name is known and its revision is not.
	Unnumbered bool `json:"unnumbered,omitempty"`
	// RevisionEpoch grows when revisions began anew under the same UID.
	RevisionEpoch int `json:"revision_epoch,omitempty"`

	// Templates seen lately, by generation.
	Templates []SeenTemplate `json:"templates,omitempty"`
	// Completed rollouts, the newest last, a silent baseline among them.
	Completed []Finished `json:"completed,omitempty"`
	// Revisions that are known, the highest last.
	Revisions []Revision `json:"revisions,omitempty"`
	// Pending are revisions that were taken after Last and are not accounted for, in the order in which they were taken.
	Pending []Pending `json:"pending,omitempty"`

	// Rollout is the newest one told, in flight or over; nil after a silent baseline.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Scaling that is not over, and how many there were.
	Scaling *Scaling `json:"scaling,omitempty"`
	Scales  int      `json:"scales,omitempty"`
	// Blocked before a rollout could begin, and how often that was told.
	Blocked  bool `json:"blocked,omitempty"`
	Blocks   int  `json:"blocks,omitempty"`
	Unblocks int  `json:"unblocks,omitempty"`
}

// Template tells pod templates from each other.
type Template struct {
	Digest      string         `json:"digest,omitempty"`
	RestartedAt string         `json:"restarted_at,omitempty"`
	Images      []events.Image `json:"images,omitempty"`
	ChangedAt   time.Time      `json:"changed_at,omitzero"`
	// SeenAt is when it was first observed where it could take effect: not paused. Held says that it was paused at first.
	SeenAt time.Time `json:"seen_at,omitzero"`
	Held   bool      `json:"held,omitempty"`
}

func (t Template) known() bool { return t.Digest != "" }

func (t Template) same(o Template) bool {
	return t.known() && t.Digest == o.Digest && t.RestartedAt == o.RestartedAt
}

// SeenTemplate is the template from a generation on.
type SeenTemplate struct {
	Generation int      `json:"generation,omitempty"`
	Template   Template `json:"template"`
}

// Finished is a rollout that came to its end.
type Finished struct {
	Revision int      `json:"revision,omitempty"`
	Name     string   `json:"name,omitempty"`
	Hash     string   `json:"hash,omitempty"`
	Template Template `json:"template,omitzero"`
}

// Revision is a ReplicaSet or a ControllerRevision.
type Revision struct {
	WorkloadUID string `json:"workload_uid"`
	Revision    int    `json:"revision,omitempty"`
	Name        string `json:"name"`
	UID         string `json:"uid"`
	Hash        string `json:"hash,omitempty"`
	Version     string `json:"version"`
	// Since is the version in which it was first seen with this revision; Listed says that a listing told it, so that it may have had it for longer.
	Since     string    `json:"since"`
	Listed    bool      `json:"listed,omitempty"`
	Deleted   bool      `json:"deleted,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	SeenAt    time.Time `json:"seen_at,omitzero"`
	History   []int     `json:"history,omitempty"`
}

// Pending is a revision that was seen and not yet accounted for.
type Pending struct {
	WorkloadUID string `json:"workload_uid"`
	Revision    int    `json:"revision"`
	Name        string `json:"name"`
	// Version in which it was taken, or, when Listed, a later one.
	Version   string    `json:"version"`
	Listed    bool      `json:"listed,omitempty"`
	Hash      string    `json:"hash,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	SeenAt    time.Time `json:"seen_at,omitzero"`
	// History are revisions that the same object bore before, the newest last: it is reused.
	History []int `json:"history,omitempty"`
}

// Rollout as it is remembered.
type Rollout struct {
	ID         string            `json:"id"`
	Revision   int               `json:"revision"`
	Name       string            `json:"name,omitempty"`
	Hash       string            `json:"hash,omitempty"`
	Change     events.Change     `json:"change"`
	OfRevision int               `json:"of_revision,omitempty"`
	Template   Template          `json:"template,omitzero"`
	Previous   []events.Image    `json:"previous,omitempty"`
	Strategy   string            `json:"strategy,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Notes      map[string]string `json:"annotations,omitempty"`

	StartedAt  time.Time         `json:"started_at"`
	SeenAt     time.Time         `json:"seen_at"`
	Provenance events.Provenance `json:"provenance"`
	Replicas   int               `json:"replicas,omitempty"`
	Scaled     bool              `json:"scaled,omitempty"`

	// End is the terminal fact, empty in flight.
	End     events.Fact `json:"end,omitempty"`
	Drained bool        `json:"drained,omitempty"`

	// Newest are the counts known last, Told those that were told last, at ToldAt; Owed says that they changed since.
	Newest Counts    `json:"newest"`
	Told   Counts    `json:"told"`
	ToldAt time.Time `json:"told_at"`
	Owed   bool      `json:"owed,omitempty"`
	// ProgressAt is when the counts last came nearer to the end, Overdue the first tick past the deadline that counts from it.
	ProgressAt time.Time `json:"progress_at"`
	Overdue    time.Time `json:"overdue,omitzero"`
	Stalled    string    `json:"stalled,omitempty"`
	Blocked    bool      `json:"blocked,omitempty"`
	Paused     bool      `json:"paused,omitempty"`
	// Partition that was reached last.
	Partition *int `json:"partition,omitempty"`
	// Unseen is a time in which it may have been completed, and nothing told since that it was not.
	Unseen *Unseen `json:"unseen,omitempty"`
	// Ordinals of facts that may repeat.
	Ordinals []Ordinal `json:"ordinals,omitempty"`
}

// Unseen is a time in which nobody looked.
type Unseen struct {
	Since time.Time    `json:"since"`
	Until time.Time    `json:"until"`
	Cause events.Cause `json:"cause"`
}

// Ordinal of the last fact of a name.
type Ordinal struct {
	Fact events.Fact `json:"fact"`
	Last int         `json:"last"`
}

// What found that a rollout has stalled.
const (
	stalledByCondition = "condition"
	stalledByTimer     = "timer"
)

// Scaling is a change of how many pods are wanted that is not yet fulfilled.
type Scaling struct {
	From       int               `json:"from"`
	To         int               `json:"to"`
	Ordinal    int               `json:"ordinal"`
	SeenAt     time.Time         `json:"seen_at"`
	Provenance events.Provenance `json:"provenance"`
	Blocked    bool              `json:"blocked,omitempty"`
}

// New is the state of a workload of which nothing is known.
func New(key Key) State { return State{Key: key} }

// Present says that the workload is there and followed, as far as is known.
func (s State) Present() bool { return s.View != nil && !s.Gone && !s.Unselected }

// InFlight says that a rollout has started and not ended.
func (s State) InFlight() bool { return s.Rollout != nil && s.Rollout.End == "" }

// clone gives a state that can be changed without changing s. Maps of labels and annotations, images and the view are never changed in place; what can grow long and seldom
// changes is shared, with nothing behind its end: who changes it otherwise than by appending makes it its own first.
func (s State) clone() State {
	s.Former = slices.Clip(s.Former)
	s.Waiting = slices.Clone(s.Waiting)
	s.Templates = slices.Clip(s.Templates)
	s.Completed = slices.Clip(s.Completed)
	s.Revisions = slices.Clip(s.Revisions)
	s.Pending = slices.Clone(s.Pending)
	if s.Rollout != nil {
		r := *s.Rollout
		r.Ordinals = slices.Clone(r.Ordinals)
		s.Rollout = &r
	}
	if s.Scaling != nil {
		scaling := *s.Scaling
		s.Scaling = &scaling
	}
	return s
}
