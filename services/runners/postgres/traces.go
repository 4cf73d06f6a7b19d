package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/execution"
)

// TraceChannel is the channel of notifications about traces that ended, or grew while somebody watched them. The
// payload is the id of the job.
const TraceChannel = "lockstep_runners_traces"

// NewTraceChanges listens on [TraceChannel].
func NewTraceChanges(pool *pgxpool.Pool) *postgres.ChangeListener[int64] {
	parse := func(payload string) (int64, error) { return strconv.ParseInt(payload, 10, 64) }
	return postgres.NewChangeListener(pool, TraceChannel, parse)
}

// queueTrace stores a trace and what was written to it. At its end only the final generation remains.
func queueTrace(batch *pgx.Batch, jobID int64, d execution.Decision) {
	batch.Queue(`UPDATE traces SET state = $2, updated_at = now() WHERE job_id = $1`, jobID, *d.Trace)
	for _, w := range d.Writes {
		if len(w.Data) > 0 {
			batch.Queue(`INSERT INTO trace_parts (job_id, generation, start, data) VALUES ($1, $2, $3, $4)`,
				jobID, w.Generation, w.Offset, w.Data)
		}
	}
	if d.Trace.Ended && d.Trace.Generation > 0 {
		batch.Queue(`DELETE FROM trace_parts WHERE job_id = $1 AND generation <> $2`, jobID, d.Trace.Final.Number)
	}
	if d.Notify {
		batch.Queue(`SELECT pg_notify($1, $2)`, TraceChannel, strconv.FormatInt(jobID, 10))
	}
}

// Traces reads traces. It is an [execution.TraceStore]. While the database is away, errors are the fault unavailable.
type Traces struct {
	Pool *pgxpool.Pool
}

var _ execution.TraceStore = Traces{}

// ReadTrace returns at most limit bytes of the trace of a job from an offset on, as they were at one time.
func (t Traces) ReadTrace(ctx context.Context, jobID, offset int64, limit int) (execution.TracePart, error) {
	var part execution.TracePart
	// The end of a trace deletes parts, so both reads need one view.
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, t.Pool, options, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, readSnapshot, jobID, false)
		if err != nil {
			return fmt.Errorf("read job %d: %w", jobID, err)
		}
		s, err := snapshot(rows, jobID)
		if err != nil {
			return err
		}
		visible := s.Trace.Visible()
		part = execution.TracePart{Offset: offset, Size: visible.Size, State: s.Job.State}
		if offset >= visible.Size {
			return nil
		}
		end := min(offset+int64(limit), visible.Size)
		part.Data, err = readParts(ctx, tx, jobID, visible.Number, offset, end)
		return err
	})
	if err != nil {
		return execution.TracePart{}, postgres.Unavailable(ctx, err)
	}
	return part, nil
}

// readParts returns the bytes of a generation from offset to end.
func readParts(ctx context.Context, tx pgx.Tx, jobID int64, generation int, offset, end int64) ([]byte, error) {
	rows, err := tx.Query(ctx, `
		SELECT substring(data FROM (skipped + 1)::int FOR (least($4 - start, length(data)) - skipped)::int)
		FROM trace_parts, LATERAL (SELECT greatest($3 - start, 0) AS skipped) AS s
		WHERE job_id = $1 AND generation = $2 AND start < $4 AND start + length(data) > $3
		ORDER BY start`, jobID, generation, offset, end)
	if err != nil {
		return nil, fmt.Errorf("read the trace of job %d: %w", jobID, err)
	}
	data := make([]byte, 0, end-offset)
	var piece []byte
	if _, err := pgx.ForEachRow(rows, []any{&piece}, func() error {
		data = append(data, piece...)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the trace of job %d: %w", jobID, err)
	}
	if int64(len(data)) != end-offset {
		return nil, fmt.Errorf("the trace of job %d has %d bytes from byte %d to %d", jobID, len(data), offset, end)
	}
	return data, nil
}

// Watch records that somebody reads the trace while it grows.
func (t Traces) Watch(ctx context.Context, jobID int64, until time.Time) error {
	if _, err := t.Pool.Exec(ctx, `
		INSERT INTO traces (job_id, state, watched_until) SELECT id, '{}', $2 FROM jobs WHERE id = $1
		ON CONFLICT (job_id) DO UPDATE SET watched_until = greatest(traces.watched_until, excluded.watched_until)`,
		jobID, until); err != nil {
		return postgres.Unavailable(ctx, fmt.Errorf("record that the trace of job %d is read: %w", jobID, err))
	}
	return nil
}
