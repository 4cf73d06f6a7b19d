package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/pipeline"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/services/runners/trace"
)

// Views reads pipelines and jobs for people.
type Views struct{ Pool *pgxpool.Pool }

// Page is a part of a list, newest first.
type Page struct {
	// Size is the maximum number of entries.
	Size int
	// Before is the id of the last entry of the page before; 0 for the first page.
	Before int64
}

// Pipeline returns a pipeline; nil if there is none. A state that is not final may be older than those of the jobs.
func (v Views) Pipeline(ctx context.Context, id int64) (*schedule.Pipeline, error) {
	found, err := readPipeline(ctx, v.Pool, `p.id = $1`, id)
	if err != nil {
		return nil, fmt.Errorf("read pipeline %d: %w", id, err)
	}
	return found, nil
}

// Pipelines returns pipelines of a project in these states; none for all.
func (v Views) Pipelines(
	ctx context.Context, projectID int64, states []job.State, page Page,
) ([]schedule.Pipeline, error) {
	rows, err := v.Pool.Query(ctx, `
		SELECT `+pipelineColumns+` FROM pipelines p
		WHERE p.project_id = $1 AND (cardinality($2::text[]) = 0 OR `+pipelineState+` = ANY ($2))
			AND ($3::bigint = 0 OR p.id < $3)
		ORDER BY p.id DESC LIMIT $4`, projectID, texts(states), page.Before, page.Size)
	if err != nil {
		return nil, fmt.Errorf("list the pipelines of project %d: %w", projectID, err)
	}
	found, err := pgx.CollectRows(rows, scanPipeline)
	if err != nil {
		return nil, fmt.Errorf("list the pipelines of project %d: %w", projectID, err)
	}
	return found, nil
}

// Attempts returns the latest attempt of every job of a pipeline, in the order of the plan.
func (v Views) Attempts(ctx context.Context, pipelineID int64) ([]schedule.Attempt, error) {
	return ReadAttempts(ctx, v.Pool, pipelineID)
}

// Job returns a job; nil if there is none.
func (v Views) Job(ctx context.Context, id int64) (*job.Job, error) {
	found, err := ReadJobs(ctx, v.Pool, id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// LatestMove returns the latest move of an organization, which shows in which cell it is; nil if it was never moved.
func (v Views) LatestMove(ctx context.Context, organizationID int64) (*move.Move, error) {
	found, err := readMoves(ctx, v.Pool, `organization_id = $1 AND `+latest, organizationID)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// JobFilter selects jobs.
type JobFilter struct {
	// ProjectID or PipelineID is required.
	ProjectID, PipelineID int64
	// States of the jobs; none for all.
	States []job.State
	// Retried: with the jobs that were retried.
	Retried bool
}

// Jobs returns jobs.
func (v Views) Jobs(ctx context.Context, f JobFilter, page Page) ([]job.Job, error) {
	owner, id := `project_id`, f.ProjectID
	if f.PipelineID != 0 {
		owner, id = `pipeline_id`, f.PipelineID
	}
	return readJobs(ctx, v.Pool, owner+` = $1 AND (cardinality($2::text[]) = 0 OR state = ANY ($2))
		AND ($3 OR retried_by = 0) AND ($4::bigint = 0 OR id < $4) ORDER BY id DESC LIMIT $5`,
		id, texts(f.States), f.Retried, page.Before, page.Size)
}

func texts(states []job.State) []string {
	out := make([]string, len(states))
	for i, s := range states {
		out[i] = string(s)
	}
	return out
}

// Details of a job.
type Details struct {
	TraceSize     int64
	TraceVerified bool
	Artifacts     []Artifact
	// Needs are the jobs of the file that must end first; none if the job waits for earlier stages.
	Needs []string
}

// Artifact is a file of a job. A zero ExpiresAt is never.
type Artifact struct {
	Type, Filename string
	Size           int64
	ExpiresAt      time.Time
}

// Details returns the details of jobs, by id. Artifacts that have expired are left out.
func (v Views) Details(ctx context.Context, ids []int64, now time.Time) (map[int64]Details, error) {
	out := make(map[int64]Details, len(ids))
	var batch pgx.Batch
	queueDetails(&batch, `SELECT job_id, state FROM traces WHERE job_id = ANY ($1)`, out, ids,
		func(state []byte, d *Details) error {
			var s trace.State
			if err := json.Unmarshal(state, &s); err != nil {
				return fmt.Errorf("decode the state of a trace: %w", err)
			}
			d.TraceSize, d.TraceVerified = s.Visible().Size, s.Verified
			return nil
		})
	queueDetails(&batch, `
		SELECT j.id, d.needs FROM jobs j JOIN definitions d ON d.pipeline_id = j.pipeline_id AND d.name = j.name
		WHERE j.id = ANY ($1) AND d.needs IS NOT NULL`, out, ids, func(encoded []byte, d *Details) error {
		var needs []pipeline.Need
		if err := json.Unmarshal(encoded, &needs); err != nil {
			return fmt.Errorf("decode the needs of a job: %w", err)
		}
		for _, n := range needs {
			d.Needs = append(d.Needs, n.Group)
		}
		return nil
	})
	batch.Queue(`
		SELECT job_id, type, filename, size, expires_at FROM artifacts
		WHERE job_id = ANY ($1) AND (expires_at IS NULL OR expires_at > $2) ORDER BY job_id, type`, ids, now).
		Query(func(rows pgx.Rows) error {
			var id int64
			var a Artifact
			var expires *time.Time
			_, err := pgx.ForEachRow(rows, []any{&id, &a.Type, &a.Filename, &a.Size, &expires}, func() error {
				d := out[id]
				a.ExpiresAt = timeOf(expires)
				d.Artifacts = append(d.Artifacts, a)
				out[id] = d
				return nil
			})
			return err //nolint:wrapcheck // wrapped below
		})
	if err := v.Pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("read the details of %d jobs: %w", len(ids), err)
	}
	return out, nil
}

// queueDetails queues a query for the ids of jobs with one JSON value each, with which add completes the details.
func queueDetails(
	batch *pgx.Batch, sql string, out map[int64]Details, ids []int64, add func([]byte, *Details) error,
) {
	batch.Queue(sql, ids).Query(func(rows pgx.Rows) error {
		var id int64
		var value []byte
		_, err := pgx.ForEachRow(rows, []any{&id, &value}, func() error {
			d := out[id]
			err := add(value, &d)
			out[id] = d
			return err
		})
		return err //nolint:wrapcheck // the caller wraps it
	})
}
