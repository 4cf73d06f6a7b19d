package rollout

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Limits of a state.
const (
	maxCompleted = 20
	maxRevisions = 32
	maxPending   = 64
	maxWaiting   = 64
	maxTemplates = 8
	maxFormer    = 4
	maxNamed     = 32
	maxOutages   = 4
	maxGap       = 1000
)

// State is the complete state of one workload. Equal states have equal JSON. The JSON names are stored in the database
// and must not change, so some of them are older than the names of their fields.
type State struct {
	Key Key `json:"key"`
	// Serial grows by 1 with each change of the state.
	Serial int `json:"serial,omitempty"`
	// Sequence of the last fact.
	Sequence int `json:"sequence,omitempty"`

	// At is the time of the last input that changed the state.
	At time.Time `json:"at,omitzero"`
	// AgentID of the sender of the newest observation.
	AgentID int64 `json:"agent_id,omitempty"`
	// Epoch and Version of the newest observation. Tombstone reports that it was a deletion.
	Epoch     int    `json:"epoch,omitempty"`
	Version   string `json:"version,omitempty"`
	Tombstone bool   `json:"tombstone,omitempty"`

	// Restored reports that the cluster was restored and the workload has not been observed since.
	Restored bool `json:"restored,omitempty"`

	// UID of the newest object with this name. FormerUIDs are the UIDs of earlier objects.
	UID        string   `json:"uid,omitempty"`
	FormerUIDs []string `json:"former,omitempty"`
	// Gone: the object was deleted. Unselected: it exists but the watcher does not follow it.
	Gone       bool `json:"gone,omitempty"`
	Unselected bool `json:"unselected,omitempty"`
	// View is the newest applied view; nil before the first one, and while the workload is gone or unselected.
	View *View `json:"view,omitempty"`
	// Waiting are views that are not applied yet because they name an unknown revision, oldest first.
	Waiting []View `json:"waiting,omitempty"`
	// WaitSince is the time of the first tick after a view was added to Waiting.
	WaitSince time.Time `json:"wait_since,omitzero"`

	// Last is the last processed revision. Name, Hash and Template are those of its ReplicaSet or ControllerRevision.
	// Generation is the generation of the workload at that time. The revision of a baseline is processed without facts.
	Last       int      `json:"last,omitempty"`
	Name       string   `json:"name,omitempty"`
	Hash       string   `json:"hash,omitempty"`
	Template   Template `json:"template,omitzero"`
	Generation int      `json:"generation,omitempty"`
	// TakenVersion is the resource version in which the ReplicaSet got that revision; empty if this was not observed.
	TakenVersion string `json:"taken,omitempty"`
	// ShownVersion is the newest version of a Deployment that shows that ReplicaSet with that revision; empty for none.
	ShownVersion string `json:"shown,omitempty"`
	// Unnumbered reports that Name is known but its revision number is not.
	Unnumbered bool `json:"unnumbered,omitempty"`
	// Highest is the highest revision number of a reported rollout. Repeats is the number of rollouts with a number that
	// was not higher.
	Highest int `json:"highest,omitempty"`
	Repeats int `json:"revision_epoch,omitempty"`

	// Templates observed last, by generation.
	Templates []SeenTemplate `json:"templates,omitempty"`
	// Named are the known templates of ReplicaSets, learned last at the end.
	Named []NamedTemplate `json:"named,omitempty"`
	// Completed rollouts, oldest first, including a complete baseline.
	Completed []Finished `json:"completed,omitempty"`
	// Revisions are the known ReplicaSets or ControllerRevisions, lowest revision first.
	Revisions []Revision `json:"revisions,omitempty"`
	// Pending are the unprocessed revisions after Last, in the order in which the objects got them.
	Pending []Pending `json:"pending,omitempty"`

	// Outages are the last periods without observations, oldest first.
	Outages []Outage `json:"outages,omitempty"`

	// Pods is the newest list of pods that do not start; nil for none.
	Pods *Pods `json:"pods,omitempty"`

	// Rollout is the newest rollout, in flight or ended; nil after a complete baseline.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Scaling is the scaling in progress. ScaleCount is the number of scalings so far.
	Scaling    *Scaling `json:"scaling,omitempty"`
	ScaleCount int      `json:"scales,omitempty"`
	// Blocked reports that the controller cannot create the ReplicaSet or its pods, and no rollout is in flight. The
	// counts are those of the facts blocked and unblocked without a rollout.
	Blocked        bool `json:"blocked,omitempty"`
	BlockedCount   int  `json:"blocks,omitempty"`
	UnblockedCount int  `json:"unblocks,omitempty"`
}

// Template identifies a pod template.
type Template struct {
	Digest      string         `json:"digest,omitempty"`
	RestartedAt string         `json:"restarted_at,omitempty"`
	Images      []events.Image `json:"images,omitempty"`
	ChangedAt   time.Time      `json:"changed_at,omitzero"`
	// SeenAt is when the template was first observed in a workload that was not paused. SeenPaused reports that the
	// workload was paused when the template was first observed.
	SeenAt     time.Time `json:"seen_at,omitzero"`
	SeenPaused bool      `json:"held,omitempty"`
}

func (t Template) known() bool { return t.Digest != "" }

func (t Template) equals(o Template) bool {
	return t.known() && t.Digest == o.Digest && t.RestartedAt == o.RestartedAt
}

// SeenTemplate is the observed template of a workload from a generation on. No version of the workload before Version
// has it; empty if that is unknown.
type SeenTemplate struct {
	Version    string   `json:"version,omitempty"`
	Generation int      `json:"generation,omitempty"`
	Template   Template `json:"template"`
}

// Finished is a completed rollout.
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
	// Since is the first observed version with this revision. Listed: this version comes from a list, so the object may
	// have got the revision earlier. SeenAt is the time of that observation.
	Since   string `json:"since"`
	Listed  bool   `json:"listed,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
	// Unseen reports that its deletion was not observed: another object has its name.
	Unseen    bool      `json:"unseen,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	SeenAt    time.Time `json:"seen_at,omitzero"`
	History   []int     `json:"history,omitempty"`
}

// Pending is an observed revision that is not processed yet.
type Pending struct {
	WorkloadUID string `json:"workload_uid"`
	Revision    int    `json:"revision"`
	Name        string `json:"name"`
	UID         string `json:"uid,omitempty"`
	// Version in which the object got the revision; maybe a later one if Listed.
	Version   string    `json:"version"`
	Listed    bool      `json:"listed,omitempty"`
	Hash      string    `json:"hash,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	SeenAt    time.Time `json:"seen_at,omitzero"`
	// History are the earlier revision numbers of a reused object, oldest first.
	History []int `json:"history,omitempty"`
}

// Rollout is the state of a rollout.
type Rollout struct {
	ID          string            `json:"id"`
	Revision    int               `json:"revision"`
	Name        string            `json:"name,omitempty"`
	Hash        string            `json:"hash,omitempty"`
	Change      events.Change     `json:"change"`
	OfRevision  int               `json:"of_revision,omitempty"`
	Template    Template          `json:"template,omitzero"`
	Previous    []events.Image    `json:"previous,omitempty"`
	Strategy    string            `json:"strategy,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	// Version of the workload that started it. ObjectUID is the UID of its ReplicaSet then.
	Version   string `json:"version,omitempty"`
	ObjectUID string `json:"object_uid,omitempty"`

	StartedAt  time.Time         `json:"started_at"`
	SeenAt     time.Time         `json:"seen_at"`
	Provenance events.Provenance `json:"provenance"`
	Replicas   int               `json:"replicas,omitempty"`
	Scaled     bool              `json:"scaled,omitempty"`

	// End is the terminal fact; empty while the rollout is in flight.
	End     events.Fact `json:"end,omitempty"`
	Drained bool        `json:"drained,omitempty"`

	// Newest are the newest counts. Reported are the last published counts, published at ReportedAt. ReportDue: they
	// differ.
	Newest     Counts    `json:"newest"`
	Reported   Counts    `json:"told"`
	ReportedAt time.Time `json:"told_at"`
	ReportDue  bool      `json:"owed,omitempty"`
	// ProgressAt is the time of the last progress, OverdueSince the time of the first tick after the deadline.
	ProgressAt   time.Time `json:"progress_at"`
	OverdueSince time.Time `json:"overdue,omitzero"`
	// Stalled is how the stall was detected; empty if the rollout is not stalled. Message is that of its fact.
	Stalled string `json:"stalled,omitempty"`
	Message string `json:"message,omitempty"`
	// Reasons of the pods in the facts of this stall. MayPass: the cluster may end the last one without a person.
	Reasons []string `json:"reasons,omitempty"`
	MayPass bool     `json:"may_pass,omitempty"`
	// Best is the best progress so far, reached at BestAt.
	Best   Progress  `json:"best,omitzero"`
	BestAt time.Time `json:"best_at,omitzero"`

	Blocked bool `json:"blocked,omitempty"`
	Paused  bool `json:"paused,omitempty"`
	// Partition is the last partition that was reached; nil for none.
	Partition *int `json:"partition,omitempty"`
	// Unobserved is a period without observations in which the rollout may have completed; nil if a later view shows that
	// it did not.
	Unobserved *Unobserved `json:"missed,omitempty"`
	// Ordinals of repeatable facts.
	Ordinals []Ordinal `json:"ordinals,omitempty"`
}

// Unobserved is a period without observations.
type Unobserved struct {
	Since time.Time    `json:"since"`
	Until time.Time    `json:"until"`
	Cause events.Cause `json:"cause"`
	// Refuted reports that a later view shows the rollout unfinished. This does not count if its ReplicaSet turns out to
	// be another one than before.
	Refuted bool `json:"refuted,omitempty"`
	// Refused reports that the cluster refused pods since: those of an earlier rollout may appear after its completion.
	Refused bool `json:"refused,omitempty"`
}

// Outage is a period without observations. Last is the last processed revision before it.
type Outage struct {
	Unobserved

	Last int `json:"last,omitempty"`
}

// Ordinal is the number of facts with this name in a rollout.
type Ordinal struct {
	Fact events.Fact `json:"fact"`
	Last int         `json:"last"`
}

// How a stall was detected.
const (
	stalledByCondition = "condition"
	stalledByTimer     = "timer"
	stalledByPods      = "pods"
)

// Scaling is a change of the desired replicas that is in progress.
type Scaling struct {
	From       int               `json:"from"`
	To         int               `json:"to"`
	Ordinal    int               `json:"ordinal"`
	SeenAt     time.Time         `json:"seen_at"`
	Provenance events.Provenance `json:"provenance"`
	Blocked    bool              `json:"blocked,omitempty"`
}

// New returns the state of an unknown workload.
func New(key Key) State { return State{Key: key} }

// Present reports whether the workload exists and is selected.
func (s State) Present() bool { return s.View != nil && !s.Gone && !s.Unselected }

// Expected reports whether a full resync lists the workload unless it is gone: it is present, or views or revisions of
// it are not applied yet.
func (s State) Expected() bool { return s.Present() || len(s.Waiting) > 0 || len(s.traced()) > 0 }

// traced returns the UIDs of objects of which only revisions were observed. They are newer than the last observation of
// the workload: older revisions belong to a former object.
func (s State) traced() []string {
	var uids []string
	for _, k := range s.Pending {
		if s.Version != "" && compareVersions(k.Version, s.Version) < 0 {
			continue
		}
		hasView := k.WorkloadUID == s.UID && (s.View != nil || s.Gone || s.Unselected) ||
			slices.ContainsFunc(s.Waiting, func(v View) bool { return v.UID == k.WorkloadUID })
		if !hasView && !slices.Contains(uids, k.WorkloadUID) {
			uids = append(uids, k.WorkloadUID)
		}
	}
	return uids
}

// InFlight reports whether a rollout has started and has not ended.
func (s State) InFlight() bool { return s.Rollout != nil && s.Rollout.End == "" }

// clone returns a copy that can be changed. Maps, images and the view are shared: replace them instead of changing
// them. Long slices are shared and clipped, so append copies them; other changes must clone the slice first.
func (s State) clone() State {
	s.FormerUIDs = slices.Clip(s.FormerUIDs)
	s.Waiting = slices.Clone(s.Waiting)
	s.Outages = slices.Clip(s.Outages)
	s.Templates = slices.Clip(s.Templates)
	s.Completed = slices.Clip(s.Completed)
	s.Revisions = slices.Clip(s.Revisions)
	s.Pending = slices.Clone(s.Pending)
	if s.Rollout != nil {
		r := *s.Rollout
		r.Ordinals, r.Reasons = slices.Clone(r.Ordinals), slices.Clip(r.Reasons)
		s.Rollout = &r
	}
	if s.Scaling != nil {
		scaling := *s.Scaling
		s.Scaling = &scaling
	}
	return s
}
