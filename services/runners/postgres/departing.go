package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
)

// sendRows calls send with rows of a table as JSON. The condition has one parameter.
func sendRows(
	ctx context.Context, db Querier, table, condition string, id int64, send func(*runnersv1.MovedRow) error,
) error {
	rows, err := db.Query(ctx, `SELECT row_to_json(r) FROM `+table+` AS r WHERE `+condition, id)
	if err != nil {
		return fmt.Errorf("read the table %s: %w", table, err)
	}
	var content []byte
	if _, err := pgx.ForEachRow(rows, []any{&content}, func() error {
		return send(&runnersv1.MovedRow{Table: table, Content: content})
	}); err != nil {
		return fmt.Errorf("send rows of the table %s: %w", table, err)
	}
	return nil
}

// Runners implements [move.Store].
func (s Moves) Runners(ctx context.Context, organizationID int64, send func(*runnersv1.MovedRow) error) error {
	err := sendRows(ctx, s.Pool, tableRunners, `organization_id = $1 ORDER BY id`, organizationID, send)
	if err == nil {
		err = sendRows(ctx, s.Pool, tableManagers, `runner_id IN (SELECT id FROM runners WHERE organization_id = $1)
			ORDER BY id`, organizationID, send)
	}
	return err
}

// InstanceRunners calls send with the rows of the instance's runners, without the hashes of their tokens.
func (s Moves) InstanceRunners(ctx context.Context, send func(*runnersv1.MovedRow) error) error {
	return sendRows(ctx, s.Pool, `(SELECT id, tags, run_untagged, protected FROM runners WHERE type = 'instance_type')`,
		`$1::bigint = 0 ORDER BY id`, 0, send)
}

// Next implements [move.Store].
func (s Moves) Next(ctx context.Context, organizationID int64) (id int64, left bool, err error) {
	err = s.Pool.QueryRow(ctx, `
		SELECT coalesce((
			SELECT p.id FROM pipelines AS p WHERE p.organization_id = $1 AND NOT EXISTS (
				SELECT FROM jobs AS j WHERE j.pipeline_id = p.id AND j.state IN ('running', 'canceling'))
			ORDER BY p.finished_at IS NOT NULL, p.id LIMIT 1), 0),
			EXISTS (SELECT FROM pipelines WHERE organization_id = $1)`, organizationID).Scan(&id, &left)
	return id, left, postgres.Unavailable(ctx, err)
}

// Artifacts implements [move.Store].
func (s Moves) Artifacts(ctx context.Context, pipelineID int64) ([]move.Artifact, error) {
	return collect(ctx, s.Pool, "artifacts", func(row pgx.CollectableRow) (move.Artifact, error) {
		var a move.Artifact
		err := row.Scan(&a.JobID, &a.Type, &a.Format, &a.SHA256, &a.Size, &a.Object, &a.Row)
		return a, err //nolint:wrapcheck // the caller wraps it
	}, `SELECT job_id, type, format, sha256, size, object, row_to_json(a) FROM artifacts AS a
		WHERE job_id IN (SELECT id FROM jobs WHERE pipeline_id = $1) AND (expires_at IS NULL OR expires_at > $2)
		ORDER BY job_id, type`, pipelineID, s.Now())
}

// Pipeline implements [move.Store].
func (s Moves) Pipeline(ctx context.Context, pipelineID int64, send func(move.Piece) error) error {
	// All reads need one view.
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.Pool, options, func(tx pgx.Tx) error {
		row := func(r *runnersv1.MovedRow) error { return send(move.Piece{Row: r}) }
		const ofJob = `job_id IN (SELECT id FROM jobs WHERE pipeline_id = $1) ORDER BY job_id`
		for _, t := range []struct{ table, condition string }{
			{tablePipelines, `id = $1`},
			{tableDefinitions, `pipeline_id = $1 ORDER BY position`},
			{tableJobs, `pipeline_id = $1 ORDER BY id`},
			{tableDelayed, `pipeline_id = $1 ORDER BY job_id`},
			{tablePrerequisites, ofJob},
			{tableTraces, ofJob},
		} {
			if err := sendRows(ctx, tx, t.table, t.condition, pipelineID, row); err != nil {
				return err
			}
		}
		return sendTraces(ctx, tx, pipelineID, send)
	})
	return postgres.Unavailable(ctx, err)
}

func sendTraces(ctx context.Context, tx pgx.Tx, pipelineID int64, send func(move.Piece) error) error {
	rows, err := tx.Query(ctx, `SELECT job_id, generation, start, data FROM trace_parts
		WHERE job_id IN (SELECT id FROM jobs WHERE pipeline_id = $1) ORDER BY job_id, generation, start`, pipelineID)
	if err != nil {
		return fmt.Errorf("read the traces of pipeline %d: %w", pipelineID, err)
	}
	for rows.Next() {
		part := &runnersv1.MovedTracePart{}
		if err := rows.Scan(&part.JobId, &part.Generation, &part.Start, &part.Data); err != nil {
			rows.Close()
			return fmt.Errorf("read the traces of pipeline %d: %w", pipelineID, err)
		}
		if err := send(move.Piece{Trace: part}); err != nil {
			rows.Close()
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the traces of pipeline %d: %w", pipelineID, err)
	}
	return nil
}

// ForgetPipeline implements [move.Store].
func (s Moves) ForgetPipeline(ctx context.Context, pipelineID int64) error {
	return postgres.Unavailable(ctx, postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM pipelines WHERE id = $1 FOR UPDATE`, pipelineID); err != nil {
			return fmt.Errorf("lock pipeline %d: %w", pipelineID, err)
		}
		jobs, err := readJobs(ctx, tx, `pipeline_id = $1 ORDER BY id FOR UPDATE`, pipelineID)
		if err != nil {
			return err
		}
		changes, ids := make([]job.Change, len(jobs)), make([]int64, len(jobs))
		for i, j := range jobs {
			ids[i] = j.ID
			if changes[i], err = j.Move(s.Now()); err != nil {
				return fmt.Errorf("move pipeline %d: %w", pipelineID, err)
			}
		}
		if err := s.Jobs.publish(ctx, tx, changes); err != nil {
			return err
		}
		return s.removePipeline(ctx, tx, pipelineID, ids)
	}))
}

// removePipeline removes all that is stored of a pipeline, but what answers the last requests of runners again.
func (s Moves) removePipeline(ctx context.Context, tx pgx.Tx, pipelineID int64, jobs []int64) error {
	var batch pgx.Batch
	batch.Queue(`INSERT INTO moved_jobs (job_id, state, expires_at)
		SELECT j.id, j.state, c.expires_at FROM jobs AS j JOIN claims AS c ON c.job_id = j.id AND c.number = j.claims
		WHERE j.id = ANY ($1) AND j.finished_at IS NOT NULL AND c.expires_at > $2 ON CONFLICT DO NOTHING`, jobs, s.Now())
	batch.Queue(`DELETE FROM claims WHERE job_id = ANY ($1) AND job_id NOT IN (SELECT job_id FROM moved_jobs)`, jobs)
	batch.Queue(`INSERT INTO unused_objects (object, since) SELECT object, $2 FROM artifacts WHERE job_id = ANY ($1)`,
		jobs, s.Now())
	for _, table := range []string{tableArtifacts, tablePrerequisites, "trace_parts", tableTraces} {
		batch.Queue(`DELETE FROM `+table+` WHERE job_id = ANY ($1)`, jobs)
	}
	batch.Queue(`DELETE FROM jobs WHERE id = ANY ($1)`, jobs)
	batch.Queue(`DELETE FROM pipelines WHERE id = $1`, pipelineID)
	batch.Queue(`SELECT pg_notify($1, $2::bigint::text)`, PipelineChannel, pipelineID)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("remove pipeline %d: %w", pipelineID, err)
	}
	return nil
}

// ForgetRunners implements [move.Store].
func (s Moves) ForgetRunners(ctx context.Context, organizationID int64) error {
	return postgres.Unavailable(ctx, postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		return s.deleteRunnersOf(ctx, tx, organizationID)
	}))
}

func (s Moves) deleteRunnersOf(ctx context.Context, tx pgx.Tx, organizationID int64) error {
	deleted, err := collect(ctx, tx, "deleted runners", scanRunner,
		`DELETE FROM runners WHERE organization_id = $1 RETURNING `+runnerColumns, organizationID)
	if err == nil {
		err = s.runners().publish(ctx, tx, s.Jobs.Encoder.RunnerDeleted, deleted...)
	}
	if err != nil {
		return fmt.Errorf("remove the runners of organization %d: %w", organizationID, err)
	}
	return nil
}

func (s Moves) runners() Runners {
	return Runners{Pool: s.Pool, Encoder: s.Jobs.Encoder, Now: s.Now}
}

// ForgetMovedJobs removes what is left of jobs whose runners cannot repeat a request any more.
func (s Moves) ForgetMovedJobs(ctx context.Context) error {
	_, err := s.Pool.Exec(ctx, `WITH expired AS (DELETE FROM moved_jobs WHERE expires_at <= $1 RETURNING job_id)
		DELETE FROM claims WHERE job_id IN (SELECT job_id FROM expired)`, s.Now())
	if err != nil {
		return postgres.Unavailable(ctx, fmt.Errorf("forget jobs that moved: %w", err))
	}
	return nil
}
