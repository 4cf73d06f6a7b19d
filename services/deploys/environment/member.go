package environment

import (
	"time"

	"lockstep.internal/services/deploys/rollout"
)

// Rules that an operator sets.
type Rules struct {
	// Label that groups workloads, an annotation of the same name does too; defaults to lockstep.dev/deploy-group.
	Label string
	// Settle is how long nothing may be heard of a group whose size nobody says before it counts as whole; defaults to 30 s.
	Settle time.Duration
}

// Input is news of one member, or a tick when Member is nil.
type Input struct {
	AgentID    int64
	ObservedAt time.Time
	Member     *Member
}

// Member is how one workload of an environment stands.
type Member struct {
	Workload rollout.Key `json:"workload"`
	// Gone says that it is no member any more: deleted, or of another group now.
	Gone bool `json:"gone,omitempty"`
}

// Change is an input and the environment it concerns.
type Change struct {
	Key   Key
	Input Input
}

// Changes gives what the step of a workload from one state to the next means to environments: nothing, one input, or, when it went from one group to
// another, two.
func (r Rules) Changes(before, after rollout.State) []Change { return nil }
