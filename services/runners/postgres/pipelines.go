package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
	"lockstep.internal/services/runners/schedule"
)

// Pipelines stores pipelines. It is a [schedule.Store].
type Pipelines struct {
	Pool *pgxpool.Pool
	Jobs Jobs
}

var _ schedule.Store = Pipelines{}

// InTx runs fn in a transaction.
func (p Pipelines) InTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return postgres.InTx(ctx, p.Pool, fn)
}

// NewPipelineID returns the id of a new pipeline.
func (p Pipelines) NewPipelineID(ctx context.Context) (int64, error) {
	var id int64
	err := p.Pool.QueryRow(ctx, `SELECT nextval('ids')`).Scan(&id)
	return id, err //nolint:wrapcheck // the caller wraps it
}

// NewIDs returns n new ids, ascending.
func (Pipelines) NewIDs(ctx context.Context, tx pgx.Tx, n int) ([]int64, error) {
	return NewIDs(ctx, tx, n)
}

// LockProject lets one transaction at a time create pipelines of a project.
func (Pipelines) LockProject(ctx context.Context, tx pgx.Tx, projectID int64) error {
	_, err := tx.Exec(ctx,
		`SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' pipelines of project ' || $1::bigint, 0))`,
		projectID)
	return err //nolint:wrapcheck // the caller wraps it
}

// pipelineColumns are those of scanPipeline. A runner that takes a job does not change the pipeline: the state is
// running from then on.
const pipelineColumns = `p.id, p.project_id, p.organization_id, p.ref, p.source, p.protected, ` + pipelineState + `,
	p.warnings, p.canceled, p.created_by, p.created_at, p.finished_at`

const pipelineState = `CASE WHEN p.state IN ('created', 'preparing', 'pending') AND EXISTS (
		SELECT FROM jobs j WHERE j.pipeline_id = p.id AND j.state = 'running') THEN 'running' ELSE p.state END`

func pipelineTargets(p *schedule.Pipeline, finished **time.Time) []any {
	return []any{
		&p.ID, &p.ProjectID, &p.OrganizationID, &p.Ref, &p.Source, &p.Protected, &p.State.State, &p.Warnings, &p.Canceled,
		&p.CreatedBy, &p.CreatedAt, finished,
	}
}

func scanPipeline(row pgx.CollectableRow) (schedule.Pipeline, error) {
	var p schedule.Pipeline
	var finished *time.Time
	err := row.Scan(pipelineTargets(&p, &finished)...)
	p.CreatedAt, p.FinishedAt = p.CreatedAt.UTC(), timeOf(finished)
	return p, err //nolint:wrapcheck // the caller wraps it
}

func readPipeline(ctx context.Context, db Querier, condition string, args ...any) (*schedule.Pipeline, error) {
	rows, err := db.Query(ctx, `SELECT `+pipelineColumns+` FROM pipelines p WHERE `+condition, args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectExactlyOneRow(rows, scanPipeline)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // no pipeline is no error
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller wraps it
	}
	return &found, nil
}

// Requested returns the pipeline of an earlier request and its hash; nil if there is none.
func (Pipelines) Requested(
	ctx context.Context, tx pgx.Tx, key schedule.RequestKey,
) (*schedule.Pipeline, [32]byte, error) {
	const condition = `p.project_id = $1 AND p.created_by = $2 AND p.request_id = $3`
	found, err := readPipeline(ctx, tx, condition, key.ProjectID, key.UserID, key.ID)
	if err != nil || found == nil {
		return nil, [32]byte{}, err
	}
	var hash []byte
	if err := tx.QueryRow(ctx, `SELECT request_hash FROM pipelines WHERE id = $1`, found.ID).Scan(&hash); err != nil {
		return nil, [32]byte{}, err //nolint:wrapcheck // the caller wraps it
	}
	if len(hash) != len(key.Hash) {
		return nil, [32]byte{}, fmt.Errorf("the hash of the request of pipeline %d has %d bytes", found.ID, len(hash))
	}
	return found, [32]byte(hash), nil
}

// CountUnfinished returns the number of pipelines of a project that have not ended.
func (Pipelines) CountUnfinished(ctx context.Context, tx pgx.Tx, projectID int64) (int, error) {
	var n int
	const count = `SELECT count(*) FROM pipelines WHERE project_id = $1 AND finished_at IS NULL`
	err := tx.QueryRow(ctx, count, projectID).Scan(&n)
	return n, err //nolint:wrapcheck // the caller wraps it
}

// Insert stores a new pipeline with the definitions of its jobs.
func (Pipelines) Insert(
	ctx context.Context, tx pgx.Tx, p schedule.Pipeline, key schedule.RequestKey, jobs []pipeline.Job,
) error {
	var requestID *string
	var hash []byte
	if key.ID != "" {
		requestID, hash = &key.ID, key.Hash[:]
	}
	var batch pgx.Batch
	batch.Queue(`
		INSERT INTO pipelines (id, project_id, organization_id, ref, source, protected, state, request_id, request_hash,
			created_by, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		p.ID, p.ProjectID, p.OrganizationID, p.Ref, p.Source, p.Protected, string(p.State.State), requestID, hash,
		p.CreatedBy, p.CreatedAt)
	rows, err := newDefinitionRows(jobs)
	if err != nil {
		return err
	}
	batch.Queue(`
		INSERT INTO definitions (pipeline_id, name, position, job_group, stage_index, run_when, needs, content)
		SELECT $1, d.name, d.position - 1, d.job_group, d.stage_index, d.run_when, d.needs::jsonb, d.content::jsonb
		FROM unnest($2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[]) WITH ORDINALITY
			AS d (name, job_group, stage_index, run_when, needs, content, position)`,
		p.ID, rows.names, rows.groups, rows.stages, rows.whens, rows.needs, rows.contents)
	return tx.SendBatch(ctx, &batch).Close() //nolint:wrapcheck // the caller wraps it
}

// definitionRows are the columns of definitions.
type definitionRows struct {
	names, whens, contents []string
	groups, needs          []*string
	stages                 []int
}

func newDefinitionRows(jobs []pipeline.Job) (definitionRows, error) {
	var rows definitionRows
	for i := range jobs {
		j := &jobs[i]
		content, err := json.Marshal(j.Definition)
		if err != nil {
			return rows, fmt.Errorf("encode the definition of job %q: %w", j.Name, err)
		}
		var group, needs *string
		if j.Group != j.Name {
			group = &j.Group
		}
		if j.HasNeeds {
			list := j.Needs
			if list == nil {
				list = []pipeline.Need{}
			}
			encoded, err := json.Marshal(list)
			if err != nil {
				return rows, fmt.Errorf("encode the needs of job %q: %w", j.Name, err)
			}
			needs = new(string(encoded))
		}
		rows.names, rows.groups = append(rows.names, j.Name), append(rows.groups, group)
		rows.stages, rows.whens = append(rows.stages, j.StageIndex), append(rows.whens, string(j.When))
		rows.needs, rows.contents = append(rows.needs, needs), append(rows.contents, string(content))
	}
	return rows, nil
}

// Lock returns a pipeline and locks it until the end of the transaction; nil if there is none.
func (Pipelines) Lock(ctx context.Context, tx pgx.Tx, id int64) (*schedule.Pipeline, error) {
	return readPipeline(ctx, tx, `p.id = $1 FOR UPDATE OF p`, id)
}

// LockOfJob is Lock for the pipeline of a job.
func (Pipelines) LockOfJob(ctx context.Context, tx pgx.Tx, jobID int64) (*schedule.Pipeline, error) {
	return readPipeline(ctx, tx, `p.id = (SELECT pipeline_id FROM jobs WHERE id = $1) FOR UPDATE OF p`, jobID)
}

// readAttempts reads the latest attempts of all jobs of a pipeline, in the order of the plan.
const readAttempts = `
	SELECT ` + jobColumns + `, d.job_group, d.stage_index, d.run_when, d.needs, delayed.job_id IS NOT NULL
	FROM (SELECT ` + jobColumns + ` FROM jobs WHERE pipeline_id = $1 AND retried_by = 0) AS latest
	JOIN (
		SELECT name AS job_name, position, coalesce(job_group, name) AS job_group, stage_index, run_when, needs
		FROM definitions WHERE pipeline_id = $1
	) AS d ON d.job_name = latest.name
	LEFT JOIN (SELECT job_id FROM delayed_jobs WHERE pipeline_id = $1) AS delayed ON delayed.job_id = latest.id
	ORDER BY d.position`

// Attempts returns the latest attempt of every job, in the order of the plan.
func (Pipelines) Attempts(ctx context.Context, tx pgx.Tx, pipelineID int64) ([]schedule.Attempt, error) {
	return ReadAttempts(ctx, tx, pipelineID)
}

// ReadAttempts returns the latest attempt of every job of a pipeline, in the order of the plan.
func ReadAttempts(ctx context.Context, db Querier, pipelineID int64) ([]schedule.Attempt, error) {
	rows, err := db.Query(ctx, readAttempts, pipelineID)
	if err != nil {
		return nil, fmt.Errorf("read the jobs of pipeline %d: %w", pipelineID, err)
	}
	found, err := pgx.CollectRows(rows, scanAttempt)
	if err != nil {
		return nil, fmt.Errorf("read the jobs of pipeline %d: %w", pipelineID, err)
	}
	return found, nil
}

func scanAttempt(row pgx.CollectableRow) (schedule.Attempt, error) {
	var a schedule.Attempt
	var r jobRow
	var needs []byte
	n := &a.Node
	err := row.Scan(append(r.targets(), &n.Group, &n.StageIndex, &n.When, &needs, &a.Delayed)...)
	if err != nil {
		return a, err //nolint:wrapcheck // the caller wraps it
	}
	a.Job = r.read()
	n.Name, n.Stage = a.Job.Name, a.Job.Stage
	if needs != nil {
		n.HasNeeds = true
		err = json.Unmarshal(needs, &n.Needs)
	}
	return a, err //nolint:wrapcheck // the caller wraps it
}

// LockJobs returns the jobs, by id, and locks them until the end of the transaction.
func (Pipelines) LockJobs(ctx context.Context, tx pgx.Tx, ids []int64) ([]job.Job, error) {
	return readJobs(ctx, tx, `id = ANY ($1) ORDER BY id FOR UPDATE`, ids)
}

// CountRuns returns how many attempts of a job were not skipped.
func (Pipelines) CountRuns(ctx context.Context, tx pgx.Tx, pipelineID int64, name string) (int, error) {
	var n int
	const count = `SELECT count(*) FROM jobs WHERE pipeline_id = $1 AND name = $2 AND state <> 'skipped'`
	err := tx.QueryRow(ctx, count, pipelineID, name).Scan(&n)
	return n, err //nolint:wrapcheck // the caller wraps it
}

// StoreJobs stores changes of jobs with their events.
func (p Pipelines) StoreJobs(ctx context.Context, tx pgx.Tx, changes ...job.Change) error {
	return p.Jobs.Store(ctx, tx, changes...)
}

// Update stores the state of a pipeline, and notifies watches.
func (Pipelines) Update(ctx context.Context, tx pgx.Tx, p schedule.Pipeline) error {
	var batch pgx.Batch
	batch.Queue(`UPDATE pipelines SET state = $2, warnings = $3, canceled = $4, finished_at = $5 WHERE id = $1`,
		p.ID, string(p.State.State), p.Warnings, p.Canceled, nullable(p.FinishedAt))
	batch.Queue(`SELECT pg_notify($1, $2::bigint::text)`, PipelineChannel, p.ID)
	return tx.SendBatch(ctx, &batch).Close() //nolint:wrapcheck // the caller wraps it
}
