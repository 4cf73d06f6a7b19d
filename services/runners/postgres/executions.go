package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/job"
)

// Executions stores jobs while runners execute them. It is an [execution.Store]. While the database is away, errors are
// the fault unavailable.
type Executions struct {
	Pool      *pgxpool.Pool
	Jobs      Jobs
	Followers execution.Followers
}

var _ execution.Store = Executions{}

// readSnapshot returns a job with its claim and its trace. The other columns have other names than those of jobs.
const readSnapshot = `
	SELECT ` + jobColumns + `, claim_number, token_hash, expires_at, claimed_at, confirmed_at, contacted_at, trace,
		watched_until, definition
	FROM jobs
	LEFT JOIN LATERAL (
		SELECT number AS claim_number, token_hash, expires_at, claimed_at, confirmed_at, contacted_at
		FROM claims WHERE claims.job_id = jobs.id) AS claim ON true
	LEFT JOIN LATERAL (
		SELECT traces.state AS trace, watched_until FROM traces WHERE traces.job_id = jobs.id) AS t ON true
	LEFT JOIN LATERAL (
		SELECT content AS definition FROM definitions AS d
		WHERE $2 AND d.pipeline_id = jobs.pipeline_id AND d.name = jobs.name) AS d ON true
	WHERE id = $1`

// scanSnapshot reads a row of readSnapshot. A definition that cannot be read is missing.
func scanSnapshot(row pgx.CollectableRow) (execution.Snapshot, error) {
	var r jobRow
	var number *int
	var hash, definition []byte
	var expires, claimed, confirmed, contacted, watched *time.Time
	var s execution.Snapshot
	trace := &s.Trace
	err := row.Scan(append(r.targets(), &number, &hash, &expires, &claimed, &confirmed, &contacted, &trace, &watched,
		&definition)...)
	if err != nil {
		return s, err //nolint:wrapcheck // the caller wraps it
	}
	s.Job, s.WatchedUntil = r.read(), timeOf(watched)
	if trace != nil {
		s.Trace = *trace
	}
	if number != nil {
		s.Claim = &execution.Claim{
			Number: *number, TokenHash: hash, ExpiresAt: timeOf(expires), ClaimedAt: timeOf(claimed),
			ConfirmedAt: timeOf(confirmed), ContactedAt: timeOf(contacted),
		}
	}
	var d job.Definition
	if definition != nil && json.Unmarshal(definition, &d) == nil {
		s.Definition = &d
	}
	return s, nil
}

// snapshot returns the only row of readSnapshot.
func snapshot(rows pgx.Rows, jobID int64) (execution.Snapshot, error) {
	found, err := pgx.CollectRows(rows, scanSnapshot)
	switch {
	case err != nil:
		return execution.Snapshot{}, fmt.Errorf("read job %d: %w", jobID, err)
	case len(found) == 0:
		return execution.Snapshot{}, fault.New(errcode.NotFound, "job %d does not exist", jobID)
	default:
		return found[0], nil
	}
}

// Read returns a job without its definition and its artifacts, with one query.
func (e Executions) Read(ctx context.Context, jobID int64) (execution.Snapshot, error) {
	// A failed query is reported by its rows.
	rows, _ := e.Pool.Query(ctx, readSnapshot, jobID, false)
	s, err := snapshot(rows, jobID)
	if fault.Is(err, errcode.NotFound) {
		s, err = movedSnapshot(ctx, e.Pool, jobID)
	}
	return s, postgres.Unavailable(ctx, err)
}

const updateContact = `UPDATE claims SET confirmed_at = coalesce(confirmed_at, $3),
	contacted_at = greatest(contacted_at, $3) WHERE job_id = $1 AND number = $2`

// Contact records a contact of the runner. It returns false if the claim is gone.
func (e Executions) Contact(ctx context.Context, jobID int64, claim int, at time.Time) (bool, error) {
	tag, err := e.Pool.Exec(ctx, updateContact, jobID, claim, at)
	if err != nil {
		return false, postgres.Unavailable(ctx, fmt.Errorf("record a contact of the runner of job %d: %w", jobID, err))
	}
	return tag.RowsAffected() == 1, nil
}

const (
	insertTrace = `INSERT INTO traces (job_id, state) SELECT id, '{}' FROM jobs WHERE id = $1 ON CONFLICT DO NOTHING`
	lockTrace   = `SELECT FROM traces WHERE job_id = $1 FOR UPDATE`
)

// errNoTrace reports a job whose trace has no row yet.
var errNoTrace = errors.New("the job has no trace yet")

// UpdateTrace locks the trace and stores the decision. The trace has its row after the first time.
func (e Executions) UpdateTrace(ctx context.Context, jobID int64, decide execution.Decide) error {
	err := e.updateTrace(ctx, jobID, false, decide)
	if errors.Is(err, errNoTrace) {
		err = e.updateTrace(ctx, jobID, true, decide)
	}
	return postgres.Unavailable(ctx, err)
}

func (e Executions) updateTrace(ctx context.Context, jobID int64, create bool, decide execution.Decide) error {
	return postgres.InTx(ctx, e.Pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		if create {
			batch.Queue(insertTrace, jobID)
		}
		var locked bool
		batch.Queue(lockTrace, jobID).Exec(func(tag pgconn.CommandTag) error {
			locked = tag.RowsAffected() == 1
			return nil
		})
		s, err := readLocked(ctx, tx, &batch, jobID)
		if err != nil {
			return err
		}
		if !locked {
			return fmt.Errorf("lock the trace of job %d: %w", jobID, errNoTrace)
		}
		decision, err := decide(s)
		if err != nil {
			return err
		}
		return storeDecision(ctx, tx, s, decision)
	})
}

// UpdateJob locks the pipeline, the job and the trace, and stores the decision. It calls the followers if the job ends.
func (e Executions) UpdateJob(ctx context.Context, jobID int64, decide execution.Decide) error {
	return postgres.Unavailable(ctx, postgres.InTx(ctx, e.Pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		// The pipeline of a job never changes.
		batch.Queue(`SELECT FROM pipelines WHERE id = (SELECT pipeline_id FROM jobs WHERE id = $1) FOR UPDATE`, jobID)
		batch.Queue(`SELECT FROM jobs WHERE id = $1 FOR UPDATE`, jobID)
		batch.Queue(insertTrace, jobID)
		batch.Queue(lockTrace, jobID)
		var artifacts []execution.Artifact
		batch.Queue(readArtifacts+` WHERE job_id = $1 ORDER BY type`, jobID).Query(func(rows pgx.Rows) error {
			var err error
			artifacts, err = pgx.CollectRows(rows, scanArtifact)
			return err //nolint:wrapcheck // wrapped by readLocked
		})
		s, err := readLocked(ctx, tx, &batch, jobID)
		if fault.Is(err, errcode.NotFound) {
			s, err = movedSnapshot(ctx, tx, jobID)
		}
		if err != nil {
			return err
		}
		s.Artifacts = artifacts
		decision, err := decide(s)
		if err != nil {
			return err
		}
		if decision.Change != nil && !s.Job.State.Active() {
			// Unlike one with a runner, a job that waits does not change while its organization moves.
			if err := tryOpen(ctx, tx, s.Job.OrganizationID); err != nil {
				return err
			}
		}
		if err := storeDecision(ctx, tx, s, decision); err != nil || decision.Change == nil {
			return err
		}
		if err := e.Jobs.Store(ctx, tx, *decision.Change); err != nil || !decision.Change.Job.State.Final() {
			return err
		}
		return e.Followers.Ended(ctx, tx, *decision.Change)
	}))
}

// readLocked sends the statements of the batch, and then reads the snapshot with the definition: it sees what was
// stored while they waited for locks.
func readLocked(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, jobID int64) (execution.Snapshot, error) {
	var s execution.Snapshot
	batch.Queue(readSnapshot, jobID, true).Query(func(rows pgx.Rows) error {
		var err error
		s, err = snapshot(rows, jobID)
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return s, fmt.Errorf("lock job %d: %w", jobID, err)
	}
	return s, nil
}

// storeDecision stores all of a decision but the change of the job.
func storeDecision(ctx context.Context, tx pgx.Tx, s execution.Snapshot, d execution.Decision) error {
	var batch pgx.Batch
	var need []*pgx.QueuedQuery
	claim := 0
	if s.Claim != nil {
		claim = s.Claim.Number
	}
	if !d.Contact.IsZero() {
		need = append(need, batch.Queue(updateContact, s.Job.ID, claim, d.Contact))
	}
	if d.Change != nil && d.Change.Event == job.EventReleased {
		need = append(need, batch.Queue(
			`DELETE FROM claims WHERE job_id = $1 AND number = $2 AND confirmed_at IS NULL`, s.Job.ID, claim))
	}
	if d.Trace != nil {
		queueTrace(&batch, s.Job.ID, d)
	}
	if d.Artifact != nil {
		need = append(need, queueArtifact(&batch, *d.Artifact))
	}
	void := false
	for _, q := range need {
		q.Exec(func(tag pgconn.CommandTag) error {
			void = void || tag.RowsAffected() == 0
			return nil
		})
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store job %d: %w", s.Job.ID, err)
	}
	if void {
		return fmt.Errorf("store job %d: %w", s.Job.ID, execution.ErrVoid)
	}
	return nil
}

// Overdue returns ids of jobs above an id that may be overdue, in their order.
func (e Executions) Overdue(
	ctx context.Context, after int64, now time.Time, rules execution.Rules, limit int,
) ([]int64, error) {
	rows, err := e.Pool.Query(ctx, `
		SELECT j.id FROM jobs AS j LEFT JOIN claims AS c ON c.job_id = j.id AND c.number = j.claims
		WHERE j.state IN ('running', 'canceling') AND j.id > $1 AND CASE
			WHEN c.job_id IS NULL THEN j.started_at <= $3
			WHEN c.expires_at <= $2 THEN true
			WHEN c.confirmed_at IS NULL THEN c.claimed_at <= $3
			WHEN j.state = 'canceling' THEN c.contacted_at <= $5
			ELSE c.contacted_at <= $4 END
		ORDER BY j.id LIMIT $6`,
		after, now, now.Add(-rules.Confirm), now.Add(-rules.Silence), now.Add(-rules.Cancel), limit)
	if err != nil {
		return nil, fmt.Errorf("read overdue jobs: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read overdue jobs: %w", err)
	}
	return ids, nil
}
