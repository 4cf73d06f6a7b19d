package environment

import (
	"slices"
	"time"

	"lockstep.internal/services/deploys/rollout"
)

// What was told last of the run.
const (
	silent  = "silent" // it was whole when it was first seen
	started = "started"
	ready   = "ready"
	failed  = "failed"
)

// maxMembers of an environment that are followed.
const maxMembers = 500

// State is everything that is remembered of one environment. Its JSON has the same bytes for equal
// states. Keep it when no member is left: its sequence goes on when the environment comes back, so
// that what is told then is no repetition, even of the same commit.
type State struct {
	Key Key `json:"key"`
	// Serial grows by 1 with each input that changed the state.
	Serial int `json:"serial,omitempty"`
	// Sequence of the last fact told.
	Sequence int   `json:"sequence,omitempty"`
	AgentID  int64 `json:"agent_id,omitempty"`
	// Members in the order of their names.
	Members []Member `json:"members,omitempty"`
	// Run is what the environment is coming to, or has come to; empty before anything is known.
	Run string `json:"run,omitempty"`
	// Told of the run last: silent, started, ready or failed. A run that has failed may still
	// become ready.
	Told string `json:"told,omitempty"`
	// SeenAt is when the run began, NewsAt when a member was last heard of.
	SeenAt time.Time `json:"seen_at,omitzero"`
	NewsAt time.Time `json:"news_at,omitzero"`
	// WakeAt is when a tick would matter.
	WakeAt time.Time `json:"wake_at,omitzero"`
}

// New is the state of an environment of which nothing is known.
func New(key Key) State { return State{Key: key} }

// Wake is when a tick would matter, the zero time if none would.
func (s State) Wake() time.Time { return s.WakeAt }

func (s State) clone() State {
	s.Members = slices.Clone(s.Members)
	return s
}

// sayers are the members by which to go where they say how many there are, or which: those of the
// run know best.
func (s State) sayers() []Member {
	says := func(m Member) bool { return m.Size > 0 || len(m.Names) > 0 }
	var ours, all []Member
	for _, m := range s.Members {
		if says(m) && m.Commit == s.Run {
			ours = append(ours, m)
		}
		if says(m) {
			all = append(all, m)
		}
	}
	if len(ours) > 0 {
		return ours
	}
	return all
}

// expected is how many members make the environment, 0 when none says.
func (s State) expected() int {
	size := 0
	for _, m := range s.sayers() {
		size = max(size, m.Size, len(m.Names))
	}
	return size
}

// assembled says that as many members are there as are expected, and those that are named.
func (s State) assembled() bool {
	for _, m := range s.sayers() {
		for _, name := range m.Names {
			there := slices.ContainsFunc(s.Members, func(o Member) bool {
				return o.Workload.Name == name || o.Workload.Kind+"/"+o.Workload.Name == name
			})
			if !there {
				return false
			}
		}
	}
	return len(s.Members) >= s.expected()
}

// all says that every member is in that state.
func (s State) all(state string) bool {
	return len(s.Members) > 0 && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.State != state })
}

// failed is a member that has failed, one of the run rather than one that is still to come to it;
// -1 where none has.
func (s State) failed() int {
	ours := slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed && s.ours(m) })
	if ours >= 0 {
		return ours
	}
	return slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed })
}

// ours says that the member does not name another commit than the run's.
func (s State) ours(m Member) bool { return m.Commit == "" || m.Commit == s.Run }

// commits says that a member names one.
func (s State) commits() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit != "" })
}

// named says that a member names that commit.
func (s State) named(commit string) bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit == commit })
}

// arrived says that every member that names a commit names the run's.
func (s State) arrived() bool {
	return !slices.ContainsFunc(s.Members, func(m Member) bool { return !s.ours(m) })
}

// digest of the images of all members, which names a run where no commit does.
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
