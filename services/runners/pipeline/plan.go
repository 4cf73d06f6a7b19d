package pipeline

import (
	"time"

	"lockstep.internal/libs/yamlfile"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// Plan is what a pipeline consists of.
type Plan struct {
	// Jobs by stage. A job comes after all jobs that it waits for.
	Jobs []Job
}

// Job is a job of a plan.
type Job struct {
	Node

	// Definition shares its lists with other jobs of the plan. It must not be changed.
	Definition job.Definition
	Policy     job.Policy
	// Tags that a runner must have, sorted.
	Tags      []string
	Timeout   time.Duration
	Protected bool
}

// NewPlan returns the jobs of a pipeline. Every error is a *[cifile.Error] with all problems: needs that do not fit
// together, jobs that exceed a limit, and for a pipeline without jobs the reason of each job that is left out.
func NewPlan(file *cifile.File, in Input) (Plan, error) {
	p := newPlanner(file, in.withDefaults())
	if p.expand() {
		order := p.order()
		p.plan(order)
		p.checkNotEmpty()
		p.checkArtifacts()
	}
	if err := yamlfile.NewError(file.Name, p.problems); err != nil {
		return Plan{}, err
	}
	return Plan{Jobs: p.jobs}, nil
}
