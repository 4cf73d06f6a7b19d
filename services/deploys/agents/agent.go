package agents

import (
	"time"

	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/rollout"
)

// minListInterval is the minimum time between two lists whose versions are compared. No message is delayed longer than
// this, so lower versions in a later list prove a restore.
const minListInterval = time.Minute

// Agent is the stored state of one agent.
type Agent struct {
	ID         int64
	ClusterUID string
	// Epoch of the cluster's resource versions. It grows by 1 when the versions restart at a lower value.
	Epoch int
	// TickedAt is the agent's own clock.
	TickedAt time.Time
	// ResyncID of the newest full resync. ResyncOpen is true until it ends.
	ResyncID   string
	ResyncOpen bool
	// ResyncExpected is the number of members that the resync announced.
	ResyncExpected int64
	// ResyncVersions are the list versions of the resync by kind, and ResyncAt is when it began.
	ResyncVersions map[string]string
	ResyncAt       time.Time
	// Selection names the workloads that the watcher follows. SelectionComplete is the selection of the newest complete
	// full resync, nil before the first.
	Selection         string
	SelectionComplete *string
	// CompleteSince is when the first of an unbroken series of complete full resyncs with this selection began.
	CompleteSince time.Time
	// ListedVersions are the list versions by kind of the resync that began at ListedAt.
	ListedVersions map[string]string
	ListedAt       time.Time
	// Rows that the agent has added.
	Rows Rows
}

// IsMember reports whether the observed object belongs to the open full resync.
func (a *Agent) IsMember(o *observation.Observation) bool {
	object := o.Object()
	return object != nil && object.ResyncID != "" && a.ResyncOpen && object.ResyncID == a.ResyncID
}

// IsComplete reports whether a full resync that ends with o, and received so many members, is complete.
func (a *Agent) IsComplete(o *observation.Observation, members int64) bool {
	return members == a.ResyncExpected && int64(o.ResyncEnded.Count) == a.ResyncExpected
}

// Absence returns the rollout input for a workload of this kind that the full resync did not list. It returns nil if
// the resync did not list the kind at all. After a change of the selection, such a workload may still exist.
func (a *Agent) Absence(kind string) *rollout.Absence {
	listed, known := a.ResyncVersions[kind]
	if !known {
		return nil
	}
	return &rollout.Absence{
		ListVersion: listed, Unselected: a.SelectionComplete != nil && *a.SelectionComplete != a.Selection,
	}
}

func (a *Agent) beginResync(o *observation.Observation) {
	if a.ClusterUID != o.ClusterUID {
		*a = Agent{ID: a.ID, ClusterUID: o.ClusterUID, TickedAt: a.TickedAt, Rows: a.Rows}
	}
	a.Rows.Members = 0
	begun := o.ResyncBegun
	a.ResyncID, a.ResyncOpen, a.ResyncExpected, a.ResyncAt = begun.ResyncID, true, int64(begun.Count), o.ObservedAt
	a.Selection = begun.Selection
	a.ResyncVersions = make(map[string]string, len(begun.ListVersions))
	for _, v := range begun.ListVersions {
		a.ResyncVersions[v.Kind] = v.ResourceVersion
	}
}

// detectRestore reports whether the store of the cluster was restored: every kind is listed at a lower version than in
// a list at least a minute earlier.
func (a *Agent) detectRestore() bool {
	if len(a.ResyncVersions) == 0 {
		return false
	}
	if a.ListedAt.IsZero() {
		a.ListedVersions, a.ListedAt = a.ResyncVersions, a.ResyncAt
		return false
	}
	if a.ResyncAt.Sub(a.ListedAt) < minListInterval {
		return false
	}
	restored := true
	for kind, listed := range a.ResyncVersions {
		before, known := a.ListedVersions[kind]
		restored = restored && known && observation.LowerVersion(listed, before)
	}
	a.ListedVersions, a.ListedAt = a.ResyncVersions, a.ResyncAt
	return restored
}
