package environment

import (
	"slices"
	"time"

	"lockstep.internal/services/deploys/rollout"
)

// Phases of a run.
const (
	baseline = "silent" // complete at the first observation; the stored name
	started  = "started"
	ready    = "ready"
	failed   = "failed"
)

// maxMembers is the maximum number of members of an environment. Further workloads are ignored.
const maxMembers = 500

// State is the state of one environment. Equal states have equal JSON. The store keeps it when no member is left, so
// that the facts of an environment that returns continue the sequence. The JSON names are stored in the database and
// must not change, so some of them are older than the names of their fields.
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
	// Phase of the run: baseline, started, ready or failed. A failed run may still become ready.
	Phase string `json:"told,omitempty"`
	// StartedAt is the start of the run, ChangedAt the last change of a member.
	StartedAt time.Time `json:"seen_at,omitzero"`
	ChangedAt time.Time `json:"news_at,omitzero"`
	// WakeAt is the time of the next timeout: a tick at this time or later changes the state. The zero time means none.
	WakeAt time.Time `json:"wake_at,omitzero"`
}

// New returns the state of an unknown environment.
func New(key Key) State { return State{Key: key} }

// Wake returns the time of the next timeout, or the zero time.
func (s State) Wake() time.Time { return s.WakeAt }

func (s State) clone() State {
	s.Members = slices.Clone(s.Members)
	return s
}

// sizedMembers returns the members whose annotations give the size or the names of the group. It prefers members of the
// run.
func (s State) sizedMembers() []Member {
	var inRun, all []Member
	for _, m := range s.Members {
		if m.Size == 0 && len(m.Names) == 0 {
			continue
		}
		all = append(all, m)
		if m.Commit == s.Run {
			inRun = append(inRun, m)
		}
	}
	if len(inRun) > 0 {
		return inRun
	}
	return all
}

// expected returns the expected number of members, 0 if unknown.
func (s State) expected() int {
	size := 0
	for _, m := range s.sizedMembers() {
		size = max(size, m.Size, len(m.Names))
	}
	return size
}

// allPresent reports whether the expected number of members and all named members exist.
func (s State) allPresent() bool {
	for _, m := range s.sizedMembers() {
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

// all reports whether every member has the given state.
func (s State) all(state string) bool {
	return len(s.Members) > 0 && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.State != state })
}

// failedMember returns the index of a failed member, preferably one of the run, or -1.
func (s State) failedMember() int {
	inRun := slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed && s.inRun(m) })
	if inRun >= 0 {
		return inRun
	}
	return slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed })
}

// inRun reports whether the member has no commit, or the commit of the run.
func (s State) inRun(m Member) bool { return m.Commit == "" || m.Commit == s.Run }

// hasCommit reports whether any member has a commit.
func (s State) hasCommit() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit != "" })
}

// hasMemberOf reports whether any member has the given commit.
func (s State) hasMemberOf(commit string) bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit == commit })
}

// sameCommit reports whether no member has another commit than the run.
func (s State) sameCommit() bool {
	return !slices.ContainsFunc(s.Members, func(m Member) bool { return !s.inRun(m) })
}

// digest returns the digest of all images. It is the name of a run without commits.
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
