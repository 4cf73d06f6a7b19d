package environment

import (
	"slices"
	"time"

	"lockstep.internal/services/deploys/rollout"
)

// Phases of a run.
const (
	silent  = "silent" // complete at the first observation
	started = "started"
	ready   = "ready"
	failed  = "failed"
)

// maxMembers bounds the members of an environment.
const maxMembers = 500

// State is the state of one environment. Equal states have equal JSON. Keep it when no member is
// left: when the environment returns, its facts continue the sequence and are not duplicates, even
// for the same commit.
type State struct {
	Key Key `json:"key"`
	// Serial grows by 1 with each input that changed the state.
	Serial int `json:"serial,omitempty"`
	// Sequence of the last fact.
	Sequence int   `json:"sequence,omitempty"`
	AgentID  int64 `json:"agent_id,omitempty"`
	// Members, sorted by name.
	Members []Member `json:"members,omitempty"`
	// Run is the name of the current run; empty before the first observation.
	Run string `json:"run,omitempty"`
	// Phase of the run: silent, started, ready or failed. A failed run may still become ready.
	Phase string `json:"told,omitempty"`
	// StartedAt is the start of the run, ChangedAt the last change of a member.
	StartedAt time.Time `json:"seen_at,omitzero"`
	ChangedAt time.Time `json:"news_at,omitzero"`
	// WakeAt is when the state must be recomputed by a tick.
	WakeAt time.Time `json:"wake_at,omitzero"`
}

// New returns the state of an unknown environment.
func New(key Key) State { return State{Key: key} }

// Wake returns when the state must be recomputed by a tick, or the zero time.
func (s State) Wake() time.Time { return s.WakeAt }

func (s State) clone() State {
	s.Members = slices.Clone(s.Members)
	return s
}

// sizing returns the members that give the size or the names of the group, those of the run if
// there are any.
func (s State) sizing() []Member {
	sized := func(m Member) bool { return m.Size > 0 || len(m.Names) > 0 }
	var ours, all []Member
	for _, m := range s.Members {
		if sized(m) && m.Commit == s.Run {
			ours = append(ours, m)
		}
		if sized(m) {
			all = append(all, m)
		}
	}
	if len(ours) > 0 {
		return ours
	}
	return all
}

// expected returns the expected number of members, 0 if unknown.
func (s State) expected() int {
	size := 0
	for _, m := range s.sizing() {
		size = max(size, m.Size, len(m.Names))
	}
	return size
}

// allPresent reports whether the expected number of members and all named members exist.
func (s State) allPresent() bool {
	for _, m := range s.sizing() {
		for _, name := range m.Names {
			exists := slices.ContainsFunc(s.Members, func(o Member) bool {
				return o.Workload.Name == name || o.Workload.Kind+"/"+o.Workload.Name == name
			})
			if !exists {
				return false
			}
		}
	}
	return len(s.Members) >= s.expected()
}

// all reports whether every member has a state.
func (s State) all(state string) bool {
	return len(s.Members) > 0 && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.State != state })
}

// failed returns the index of a failed member, preferably one of the run, or -1.
func (s State) failed() int {
	ours := slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed && s.inRun(m) })
	if ours >= 0 {
		return ours
	}
	return slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed })
}

// inRun reports whether the member has no commit, or the commit of the run.
func (s State) inRun(m Member) bool { return m.Commit == "" || m.Commit == s.Run }

// hasCommit reports whether any member has a commit.
func (s State) hasCommit() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit != "" })
}

// hasMemberOf reports whether any member has a commit.
func (s State) hasMemberOf(commit string) bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit == commit })
}

// sameCommit reports whether no member has another commit than the run.
func (s State) sameCommit() bool {
	return !slices.ContainsFunc(s.Members, func(m Member) bool { return !s.inRun(m) })
}

// digest returns the digest of all images, the name of a run without commits.
func (s State) digest() string {
	hash := newDigest()
	for _, m := range s.Members {
		hash.add(m.Workload.String())
		for _, image := range m.Images {
			hash.add(image)
		}
	}
	return hash.sum()
}
