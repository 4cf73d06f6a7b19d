package pipeline

import (
	"cmp"
	"net/url"
	"time"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// Input is what a plan depends on besides the file.
type Input struct {
	// PipelineID is in the variables of jobs, but rules do not have it, as in GitLab. 0 for a check of a file.
	PipelineID int64
	// Source is how the pipeline was created, such as api or web.
	Source  string
	Project Project
	Ref     Ref
	User    User
	// ServerURL is the address of this installation. It may be nil.
	ServerURL *url.URL

	// ProjectVariables have precedence over those of the file, and Variables, which the user gave, over all. Their names
	// must be valid and unique.
	ProjectVariables, Variables []job.Variable

	// DefaultTimeout of a job. Defaults to one hour, or to MaximumTimeout if that is shorter.
	DefaultTimeout time.Duration
	// MaximumTimeout of a job. Defaults to 30 days.
	MaximumTimeout time.Duration
	// Limits of the plan: Jobs, and Total, which includes all variables. Defaults to [cifile.DefaultLimits].
	Limits cifile.Limits
}

// Project owns the pipeline.
type Project struct {
	ID int64
	// Path is the full path, such as group/subgroup/project.
	Path string
	// DefaultBranch may be empty.
	DefaultBranch string
}

// Ref is the branch or tag that the pipeline is for. Its name may be empty.
type Ref struct {
	Name string
	Tag  bool
	// Protected refs make protected jobs.
	Protected bool
}

// User created the pipeline. The zero value is nobody.
type User struct {
	ID    int64
	Login string
}

const (
	defaultTimeout = time.Hour
	maximumTimeout = 30 * 24 * time.Hour
)

func (in Input) withDefaults() Input {
	limits := cifile.DefaultLimits()
	in.MaximumTimeout = cmp.Or(in.MaximumTimeout, maximumTimeout)
	in.DefaultTimeout = min(cmp.Or(in.DefaultTimeout, defaultTimeout), in.MaximumTimeout)
	in.Limits.Jobs = cmp.Or(in.Limits.Jobs, limits.Jobs)
	in.Limits.Total = cmp.Or(in.Limits.Total, limits.Total)
	return in
}
