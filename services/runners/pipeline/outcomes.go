package pipeline

import "lockstep.internal/services/runners/job"

// outcomes is a set of ways in which jobs ended.
type outcomes uint8

const (
	// waiting: at least one job has not ended.
	waiting outcomes = 1 << iota
	// succeeded includes failures that are allowed.
	succeeded
	failed
	canceled
	skipped
)

// has reports whether one of the others is in the set.
func (o outcomes) has(others outcomes) bool { return o&others != 0 }

func (s *Status) outcome() outcomes {
	switch s.State {
	case job.Success:
		return succeeded
	case job.Skipped:
		return skipped
	case job.Failed, job.Canceled:
		if s.FailureAllowed {
			return succeeded
		}
		if s.State == job.Failed {
			return failed
		}
		return canceled
	default:
		return waiting
	}
}

// runsAfter reports whether the job runs after all jobs before it ended so.
func (n *Node) runsAfter(before outcomes) bool {
	switch n.When {
	case job.Always:
		return true
	case job.OnFailure:
		return before.has(failed)
	default:
		if n.HasNeeds && before.has(skipped) {
			return false
		}
		return !before.has(failed | canceled)
	}
}
