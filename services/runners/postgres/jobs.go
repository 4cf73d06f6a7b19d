package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/publish"
)

// JobChannel is the channel of notifications about jobs that changed. The payload is the id.
const JobChannel = "lockstep_runners_jobs"

// JobChanges is a LISTEN client for the ids of changed jobs.
type JobChanges = postgres.ChangeListener[int64]

// NewJobChanges listens on [JobChannel].
func NewJobChanges(pool *pgxpool.Pool) *JobChanges {
	parse := func(payload string) (int64, error) { return strconv.ParseInt(payload, 10, 64) }
	return postgres.NewChangeListener(pool, JobChannel, parse)
}

// Jobs stores jobs, and their transitions in the outbox.
type Jobs struct {
	Encoder publish.Encoder
}

// ErrStale is wrapped when a job has changed since it was read.
var ErrStale = errors.New("the job has changed meanwhile")

const jobColumns = `id, pipeline_id, project_id, organization_id, name, stage, tags, protected, timeout_s, policy,
	state, revision, attempt, retry_of, retried_by, claims, runner_id, manager_id, run_timeout_s, reason, exit_code,
	canceled_by, created_at, pending_since, started_at, finished_at, admission, preparing_since`

// columns returns the values of a job in the order of jobColumns.
func columns(j job.Job) []any {
	return []any{
		j.ID, j.PipelineID, j.ProjectID, j.OrganizationID, j.Name, j.Stage, list(j.Tags), j.Protected, seconds(j.Timeout),
		policyOf(j.Policy), string(j.State), j.Revision, j.Attempt, j.RetryOf, j.RetriedBy, j.Claims, j.RunnerID,
		j.ManagerID, seconds(j.RunTimeout), string(j.Reason), j.ExitCode, j.CanceledBy, j.CreatedAt,
		nullable(j.PendingSince), nullable(j.StartedAt), nullable(j.FinishedAt), (*admission)(j.Admission),
		nullable(j.PreparingSince),
	}
}

// scanJob reads a row of jobColumns.
func scanJob(row pgx.CollectableRow) (job.Job, error) {
	var r jobRow
	err := row.Scan(r.targets()...)
	return r.read(), err
}

// jobRow is a row of jobColumns.
type jobRow struct {
	job                                   job.Job
	timeout, runTimeout                   int64
	policy                                policy
	admission                             *admission
	preparing, pending, started, finished *time.Time
}

// targets returns what a row is scanned into, in the order of jobColumns.
func (r *jobRow) targets() []any {
	j := &r.job
	return []any{
		&j.ID, &j.PipelineID, &j.ProjectID, &j.OrganizationID, &j.Name, &j.Stage, &j.Tags, &j.Protected,
		&r.timeout, &r.policy, &j.State, &j.Revision, &j.Attempt, &j.RetryOf, &j.RetriedBy, &j.Claims, &j.RunnerID,
		&j.ManagerID, &r.runTimeout, &j.Reason, &j.ExitCode, &j.CanceledBy, &j.CreatedAt, &r.pending, &r.started,
		&r.finished, &r.admission, &r.preparing,
	}
}

// read returns the job that was scanned.
func (r *jobRow) read() job.Job {
	j := r.job
	j.Timeout, j.RunTimeout = time.Duration(r.timeout)*time.Second, time.Duration(r.runTimeout)*time.Second
	j.Policy = r.policy.policy()
	j.Admission = (*job.Admission)(r.admission)
	j.CreatedAt, j.PreparingSince = j.CreatedAt.UTC(), timeOf(r.preparing)
	j.PendingSince, j.StartedAt, j.FinishedAt = timeOf(r.pending), timeOf(r.started), timeOf(r.finished)
	j.Tags = unlist(j.Tags)
	return j
}

// policy is the JSON form of a [job.Policy] in the table.
type policy struct {
	Retries              int                 `json:"retries,omitempty"`
	RetryWhen            []job.FailureReason `json:"retry_when,omitempty"`
	AllowFailure         bool                `json:"allow_failure,omitempty"`
	AllowExitCodes       []int               `json:"allow_exit_codes,omitempty"`
	AllowDeniedAdmission bool                `json:"allow_denied_admission,omitempty"`
}

// admission is the JSON form of a [job.Admission] in the table.
type admission struct {
	Preparation     int64    `json:"preparation"`
	OriginalTags    []string `json:"original_tags,omitempty"`
	AcceptedRunners []int64  `json:"accepted_runners,omitempty"`
	RejectedRunners []int64  `json:"rejected_runners,omitempty"`
	Reason          string   `json:"reason,omitempty"`
}

func policyOf(p job.Policy) policy  { return policy(p) }
func (p policy) policy() job.Policy { return job.Policy(p) }
func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

const insertJobValues = `INSERT INTO jobs (` + jobColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
	$12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28)`

// updateJob writes what a transition can change, if the job has the revision before it.
const updateJob = `UPDATE jobs SET state = $3, revision = $2, retried_by = $4, claims = $5, runner_id = $6,
	manager_id = $7, run_timeout_s = $8, reason = $9, exit_code = $10, canceled_by = $11, pending_since = $12,
	started_at = $13, finished_at = $14, tags = $15, admission = $16, preparing_since = $17
	WHERE id = $1 AND revision = $2 - 1`

// changed are the columns of the job that a statement of a transition has stored. Replicas are notified of it.
const changed = ` RETURNING id, pg_notify('` + JobChannel + `', id::text)`

// A transition is one statement with its event and its notifications, of which all or nothing is stored.
var (
	storeNew = `WITH job AS (` + insertJobValues + ` ON CONFLICT (id) DO NOTHING` + changed + `) ` +
		outbox.InsertFrom("job", 29)
	storeUpdate = `WITH job AS (` + updateJob + changed + `) ` + outbox.InsertFrom("job", 18)
)

// updated returns the arguments of updateJob.
func updated(j job.Job) []any {
	return []any{
		j.ID, j.Revision, string(j.State), j.RetriedBy, j.Claims, j.RunnerID, j.ManagerID, seconds(j.RunTimeout),
		string(j.Reason), j.ExitCode, j.CanceledBy, nullable(j.PendingSince), nullable(j.StartedAt),
		nullable(j.FinishedAt), list(j.Tags), (*admission)(j.Admission), nullable(j.PreparingSince),
	}
}

// Try stores those changes whose job has not changed since it was read, and returns them. It publishes their events and
// notifies replicas. A job has one change, or its creation and what follows.
func (s Jobs) Try(ctx context.Context, tx pgx.Tx, changes ...job.Change) ([]job.Change, error) {
	if len(changes) == 0 {
		return nil, nil
	}
	batch := transitions{Jobs: s}
	for _, c := range changes {
		statement, arguments := storeUpdate, updated(c.Job)
		if c.Job.Revision == 1 {
			statement, arguments = storeNew, columns(c.Job)
		}
		if err := batch.add(ctx, c, statement, arguments); err != nil {
			return nil, err
		}
	}
	return batch.send(ctx, tx)
}

// transitions are statements of changes that are sent together.
type transitions struct {
	Jobs

	batch  pgx.Batch
	stored []job.Change
}

// add adds the statement of a change. Its arguments are followed by those of the event.
func (t *transitions) add(ctx context.Context, c job.Change, statement string, arguments []any) error {
	messages, err := t.Encoder.Changes(ctx, c)
	if err != nil {
		return err
	}
	event, err := outbox.Arguments(messages[0])
	if err != nil {
		return fmt.Errorf("publish a transition of job %d: %w", c.Job.ID, err)
	}
	t.batch.Queue(statement, slices.Concat(arguments, event)...).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() == 1 {
			t.stored = append(t.stored, c)
		}
		return nil
	})
	return nil
}

// send returns the changes that are stored: those whose statement inserted an event. A batch that a pool sends is a
// transaction.
func (t *transitions) send(ctx context.Context, db interface {
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
},
) ([]job.Change, error) {
	if err := db.SendBatch(ctx, &t.batch).Close(); err != nil {
		return nil, fmt.Errorf("store %d transitions: %w", t.batch.Len(), err)
	}
	return t.stored, nil
}

// Store is Try that returns [ErrStale] if one of the jobs has changed.
func (s Jobs) Store(ctx context.Context, tx pgx.Tx, changes ...job.Change) error {
	stored, err := s.Try(ctx, tx, changes...)
	if err == nil && len(stored) < len(changes) {
		return fmt.Errorf("store %d transitions, of which %d are possible: %w", len(changes), len(stored), ErrStale)
	}
	return err
}

// publish publishes changes of jobs that the same transaction removes, and notifies replicas.
func (s Jobs) publish(ctx context.Context, tx pgx.Tx, changes []job.Change) error {
	messages, err := s.Encoder.Changes(ctx, changes...)
	if err != nil {
		return err
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("publish transitions: %w", err)
	}
	ids := make([]int64, len(changes))
	for i, c := range changes {
		ids[i] = c.Job.ID
	}
	const notify = `SELECT pg_notify($1, id::text) FROM unnest($2::bigint[]) AS id`
	if _, err := tx.Exec(ctx, notify, JobChannel, ids); err != nil {
		return fmt.Errorf("notify replicas of jobs: %w", err)
	}
	return nil
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readJobs(ctx context.Context, db Querier, condition string, args ...any) ([]job.Job, error) {
	rows, err := db.Query(ctx, `SELECT `+jobColumns+` FROM jobs WHERE `+condition, args...)
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	return jobs, nil
}

// ReadJobs returns the jobs with these ids that exist, by id.
func ReadJobs(ctx context.Context, db Querier, ids ...int64) ([]job.Job, error) {
	return readJobs(ctx, db, `id = ANY ($1) ORDER BY id`, ids)
}

// LockJob returns a job and locks it until the end of the transaction; nil if there is none.
func LockJob(ctx context.Context, tx pgx.Tx, id int64) (*job.Job, error) {
	jobs, err := readJobs(ctx, tx, `id = $1 FOR UPDATE`, id)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	return &jobs[0], nil
}

// LiveJobs returns all jobs that wait for a runner or are with one. Jobs of organizations that move do not wait.
func LiveJobs(ctx context.Context, db Querier) ([]job.Job, error) {
	return readJobs(ctx, db, `(state = 'pending' AND `+notClosed+`) OR state IN ('running', 'canceling')`)
}

// PendingSince returns jobs that wait for a runner since a time at the latest, with ids above an id, by id. Jobs of
// organizations that move do not wait.
func PendingSince(ctx context.Context, db Querier, since time.Time, after int64, limit int) ([]job.Job, error) {
	return readJobs(ctx, db, `state = 'pending' AND pending_since <= $1 AND id > $2 AND `+notClosed+`
		ORDER BY id LIMIT $3`, since, after, limit)
}
