package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/runners/job"
)

// Delay lets a job begin at a time.
func (Pipelines) Delay(ctx context.Context, tx pgx.Tx, j job.Job, until time.Time) error {
	_, err := tx.Exec(ctx, `INSERT INTO delayed_jobs (job_id, pipeline_id, begins_at) VALUES ($1, $2, $3)`,
		j.ID, j.PipelineID, until)
	return err //nolint:wrapcheck // the caller wraps it
}

// Undelay removes the delays of a pipeline that end at the time at the latest, and returns their number.
func (Pipelines) Undelay(ctx context.Context, tx pgx.Tx, pipelineID int64, until time.Time) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM delayed_jobs WHERE pipeline_id = $1 AND begins_at <= $2`, pipelineID, until)
	return tag.RowsAffected(), err
}

// openDelays are the delays of organizations that may be changed.
const openDelays = ` FROM delayed_jobs AS d JOIN pipelines AS p ON p.id = d.pipeline_id AND p.` + notClosed

// Due returns pipelines with delays that end at the time at the latest, those with the earliest first.
func (p Pipelines) Due(ctx context.Context, until time.Time, limit int) ([]int64, error) {
	rows, err := p.Pool.Query(ctx, `
		SELECT pipeline_id`+openDelays+` WHERE begins_at <= $1 GROUP BY pipeline_id ORDER BY min(begins_at) LIMIT $2`,
		until, limit)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller wraps it
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64]) //nolint:wrapcheck // the caller wraps it
}

// NextDelay returns when the next delay ends; the zero time if there is none.
func (p Pipelines) NextDelay(ctx context.Context) (time.Time, error) {
	var next *time.Time
	err := p.Pool.QueryRow(ctx, `SELECT min(begins_at)`+openDelays).Scan(&next)
	return timeOf(next), err
}
