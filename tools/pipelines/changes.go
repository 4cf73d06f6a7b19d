package pipelines

import (
	"fmt"
	"time"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/trace"
)

// Changes returns what changed between two versions of a pipeline, one line each: jobs in the order of the pipeline,
// then the pipeline. before is nil for the first version, of which all jobs that do more than wait are changes.
func Changes(before, after *runnersv1.Pipeline) []string {
	known := map[int64]*runnersv1.Job{}
	for _, j := range before.GetJobs() {
		known[j.GetId()] = j
	}
	var lines []string
	for _, j := range after.GetJobs() {
		last, was := known[j.GetId()]
		if was && last.GetState() == j.GetState() ||
			!was && j.GetState() == runnersv1.JobState_JOB_STATE_CREATED && before == nil {
			continue
		}
		lines = append(lines, jobChange(j))
	}
	if before == nil || before.GetState() != after.GetState() {
		line := fmt.Sprintf("pipeline %d  %s", after.GetId(), State(after))
		if after.GetWarnings() {
			line += " with warnings"
		}
		if Ended(after) {
			line += " after " + trace.Span(Age(after, time.Time{}))
		}
		lines = append(lines, line)
	}
	return lines
}

func jobChange(j *runnersv1.Job) string {
	line := fmt.Sprintf("%s  %s", trace.Line(j.GetName()), JobState(j))
	if j.GetAttempt() > 1 {
		line += fmt.Sprintf(" (attempt %d)", j.GetAttempt())
	}
	if JobEnded(j) && j.GetStartedAt() != nil {
		line += " after " + trace.Span(Took(j, time.Time{}))
	}
	if why := Why(j); why != "" {
		line += ": " + why
	}
	if j.GetFailureAllowed() && j.GetState() == runnersv1.JobState_JOB_STATE_FAILED {
		line += " (allowed)"
	}
	return line
}
