package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/runners/job"
)

// Predefined returns the predefined variables of jobs of a pipeline, by the names of the jobs.
func (Pipelines) Predefined(
	ctx context.Context, tx pgx.Tx, pipelineID int64, jobs []string,
) (map[string]map[string]string, error) {
	const read = `SELECT name, content FROM definitions WHERE pipeline_id = $1 AND name = ANY ($2)`
	rows, err := tx.Query(ctx, read, pipelineID, jobs)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller wraps it
	}
	found := make(map[string]map[string]string, len(jobs))
	var name string
	var content []byte
	_, err = pgx.ForEachRow(rows, []any{&name, &content}, func() error {
		var d job.Definition
		if err := json.Unmarshal(content, &d); err != nil {
			return fmt.Errorf("decode the definition of job %q: %w", name, err)
		}
		found[name] = d.Predefined()
		return nil
	})
	return found, err //nolint:wrapcheck // the caller wraps it
}

// Preparing returns jobs that wait for admission since a time at the latest, or whose admission must begin again. Jobs
// of organizations that move do not wait.
func (p Pipelines) Preparing(ctx context.Context, since time.Time, limit int) ([]int64, error) {
	rows, err := p.Pool.Query(ctx, `
		SELECT id FROM jobs WHERE state = 'preparing' AND (preparing_since IS NULL OR preparing_since <= $1)
			AND `+notClosed+`
		ORDER BY preparing_since NULLS FIRST LIMIT $2`, since, limit)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller wraps it
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64]) //nolint:wrapcheck // the caller wraps it
}

// PutPrerequisites stores the prerequisites of a job as they are now. It does nothing for a job that does not exist.
func PutPrerequisites(
	ctx context.Context, tx pgx.Tx, jobID, preparation int64, prerequisites ...job.Prerequisite,
) error {
	const put = `INSERT INTO prerequisites (job_id, preparation, controller_id, content)
		SELECT $1, $2, $3, $4 WHERE EXISTS (SELECT FROM jobs WHERE id = $1)
		ON CONFLICT (job_id, preparation, controller_id) DO UPDATE SET content = excluded.content`
	var batch pgx.Batch
	for _, p := range prerequisites {
		batch.Queue(put, jobID, preparation, p.ControllerID, p)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store the prerequisites of job %d: %w", jobID, err)
	}
	return nil
}

// Prerequisites returns the prerequisites of the last preparation of a job, in the order of the chain.
func (v Views) Prerequisites(ctx context.Context, jobID int64) ([]job.Prerequisite, error) {
	rows, err := v.Pool.Query(ctx, `
		SELECT content FROM prerequisites
		WHERE job_id = $1 AND preparation = (SELECT max(preparation) FROM prerequisites WHERE job_id = $1)
		ORDER BY (content -> 'position')::int, controller_id`, jobID)
	if err != nil {
		return nil, fmt.Errorf("read the prerequisites of job %d: %w", jobID, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[job.Prerequisite])
	if err != nil {
		return nil, fmt.Errorf("read the prerequisites of job %d: %w", jobID, err)
	}
	return found, nil
}
