package pipelines

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

const (
	colourGood  = "\x1b[32m"
	colourBusy  = "\x1b[36m"
	colourWarn  = "\x1b[33m"
	colourBad   = "\x1b[31m"
	colourFaint = "\x1b[2m"
	colourBold  = "\x1b[1m"
	colourNone  = "\x1b[0m"
)

// State returns the state of a pipeline, such as running.
func State(p *runnersv1.Pipeline) string {
	return strings.ToLower(strings.TrimPrefix(p.GetState().String(), "PIPELINE_STATE_"))
}

// JobState returns the state of a job, such as pending.
func JobState(j *runnersv1.Job) string {
	return strings.ToLower(strings.TrimPrefix(j.GetState().String(), "JOB_STATE_"))
}

// Ended reports whether a pipeline has ended.
func Ended(p *runnersv1.Pipeline) bool { return ended(runnersv1.JobState(p.GetState())) }

// JobEnded reports whether a job has ended.
func JobEnded(j *runnersv1.Job) bool { return ended(j.GetState()) }

// ended takes states of pipelines, too: both have the same numbers.
func ended(state runnersv1.JobState) bool {
	switch state {
	case runnersv1.JobState_JOB_STATE_SUCCESS, runnersv1.JobState_JOB_STATE_FAILED,
		runnersv1.JobState_JOB_STATE_CANCELED, runnersv1.JobState_JOB_STATE_SKIPPED:
		return true
	default:
		return false
	}
}

// mark returns the symbol and the colour of a state.
func mark(state runnersv1.JobState, allowed bool) (symbol, colour string) {
	switch state {
	case runnersv1.JobState_JOB_STATE_CREATED:
		return "·", colourFaint
	case runnersv1.JobState_JOB_STATE_PREPARING:
		return "◌", colourFaint
	case runnersv1.JobState_JOB_STATE_PENDING:
		return "○", colourWarn
	case runnersv1.JobState_JOB_STATE_RUNNING:
		return "●", colourBusy
	case runnersv1.JobState_JOB_STATE_CANCELING:
		return "◐", colourWarn
	case runnersv1.JobState_JOB_STATE_SUCCESS:
		if allowed {
			return "!", colourWarn
		}
		return "✓", colourGood
	case runnersv1.JobState_JOB_STATE_FAILED:
		if allowed {
			return "!", colourWarn
		}
		return "✗", colourBad
	case runnersv1.JobState_JOB_STATE_CANCELED:
		return "⊘", colourFaint
	case runnersv1.JobState_JOB_STATE_SKIPPED:
		return "»", colourFaint
	case runnersv1.JobState_JOB_STATE_UNSPECIFIED:
		return "?", colourFaint
	default:
		return "?", colourFaint
	}
}

// Took returns how long a job has run at a time; 0 before it starts.
func Took(j *runnersv1.Job, now time.Time) time.Duration {
	return between(j.GetStartedAt(), j.GetFinishedAt(), now)
}

// Age returns the time from the creation of a pipeline to its end, or to now.
func Age(p *runnersv1.Pipeline, now time.Time) time.Duration {
	return between(p.GetCreatedAt(), p.GetFinishedAt(), now)
}

func between(from, to *timestamppb.Timestamp, now time.Time) time.Duration {
	if from == nil {
		return 0
	}
	if to != nil {
		now = to.AsTime()
	}
	return max(0, now.Sub(from.AsTime()))
}
