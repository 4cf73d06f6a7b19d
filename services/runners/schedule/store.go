package schedule

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// Pipeline is a pipeline as it is stored. Times are UTC; the zero time means never.
type Pipeline struct {
	pipeline.State

	ID, ProjectID, OrganizationID int64

	// Ref is the name of a branch or tag. Empty for none.
	Ref string
	// Source is how it was created, such as api.
	Source    string
	Protected bool

	// Canceled: a user canceled the pipeline, and nobody has retried it or one of its jobs since.
	Canceled bool

	CreatedBy             int64
	CreatedAt, FinishedAt time.Time
}

// Attempt is the latest attempt of a job with its place in the graph.
type Attempt struct {
	Job  job.Job
	Node pipeline.Node
	// Delayed jobs do not begin yet.
	Delayed bool
}

// Status returns what package pipeline decides with.
func (a Attempt) Status() pipeline.Status {
	s := pipeline.NewStatus(a.Job, a.Node)
	s.Delayed = a.Delayed
	return s
}

// RequestKey identifies the request that creates a pipeline.
type RequestKey struct {
	ProjectID, UserID int64
	// ID that the caller chose. Empty: the request is not repeated.
	ID string
	// Hash of the request.
	Hash [32]byte
}

// Store keeps pipelines in PostgreSQL. The methods with a transaction are part of it.
type Store interface {
	Pipelines
	Jobs
	Delays
	Preparations

	InTx(ctx context.Context, fn func(tx pgx.Tx) error) error
}

// Pipelines stores pipelines.
type Pipelines interface {
	// NewPipelineID returns the id of a new pipeline.
	NewPipelineID(ctx context.Context) (int64, error)
	// LockOrganization keeps moves of an organization to another cell from beginning until the transaction ends. It is
	// called before any row is locked. Fault organization_moving for one that is being moved or has left.
	LockOrganization(ctx context.Context, tx pgx.Tx, id int64) error
	// LockOrganizationOf is LockOrganization for that of a pipeline, or else of a job.
	LockOrganizationOf(ctx context.Context, tx pgx.Tx, pipelineID, jobID int64) error
	// LockProject lets one transaction at a time create pipelines of a project.
	LockProject(ctx context.Context, tx pgx.Tx, projectID int64) error
	// Requested returns the pipeline that an earlier request with the same project, user and id created, and its hash;
	// nil if there is none.
	Requested(ctx context.Context, tx pgx.Tx, key RequestKey) (*Pipeline, [32]byte, error)
	// CountUnfinished returns the number of pipelines of a project that have not ended.
	CountUnfinished(ctx context.Context, tx pgx.Tx, projectID int64) (int, error)
	// Insert stores a new pipeline with the definitions of its jobs.
	Insert(ctx context.Context, tx pgx.Tx, p Pipeline, key RequestKey, jobs []pipeline.Job) error
	// Lock returns a pipeline and locks it until the end of the transaction; nil if there is none. LockOfJob does so for
	// the pipeline of a job.
	Lock(ctx context.Context, tx pgx.Tx, id int64) (*Pipeline, error)
	LockOfJob(ctx context.Context, tx pgx.Tx, jobID int64) (*Pipeline, error)
	// Update stores the state of a pipeline, and notifies watches that its jobs have changed.
	Update(ctx context.Context, tx pgx.Tx, p Pipeline) error
}

// Jobs stores the jobs of pipelines.
type Jobs interface {
	// NewIDs returns ids of new jobs, ascending.
	NewIDs(ctx context.Context, tx pgx.Tx, n int) ([]int64, error)
	// Attempts returns the latest attempt of every job, in the order of the plan.
	Attempts(ctx context.Context, tx pgx.Tx, pipelineID int64) ([]Attempt, error)
	// LockJobs returns the jobs, by id, and locks them.
	LockJobs(ctx context.Context, tx pgx.Tx, ids []int64) ([]job.Job, error)
	// CountRuns returns how many attempts of a job were not skipped.
	CountRuns(ctx context.Context, tx pgx.Tx, pipelineID int64, name string) (int, error)
	// StoreJobs stores changes of jobs with their events.
	StoreJobs(ctx context.Context, tx pgx.Tx, changes ...job.Change) error
}

// Preparations has what jobs need that wait for admission.
type Preparations interface {
	// Predefined returns the predefined variables of jobs of a pipeline, by the names of the jobs.
	Predefined(ctx context.Context, tx pgx.Tx, pipelineID int64, jobs []string) (map[string]map[string]string, error)
	// Preparing returns jobs that wait for admission since a time at the latest, or whose admission must begin again.
	Preparing(ctx context.Context, since time.Time, limit int) ([]int64, error)
}

// Delays stores when jobs begin that were retried without a user.
type Delays interface {
	// Delay lets a job begin at a time.
	Delay(ctx context.Context, tx pgx.Tx, j job.Job, until time.Time) error
	// Undelay removes the delays of a pipeline that end at the time at the latest, and returns their number.
	Undelay(ctx context.Context, tx pgx.Tx, pipelineID int64, until time.Time) (int64, error)
	// Due returns pipelines with delays that end at the time at the latest, those with the earliest first.
	Due(ctx context.Context, until time.Time, limit int) ([]int64, error)
	// NextDelay returns when the next delay ends; the zero time if there is none.
	NextDelay(ctx context.Context) (time.Time, error)
}
