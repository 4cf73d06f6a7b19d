package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/execution"
)

// Artifacts stores which objects artifacts have. It is an [execution.ArtifactStore]. While the database is away, errors
// of requests are the fault unavailable.
type Artifacts struct {
	Pool *pgxpool.Pool
}

var _ execution.ArtifactStore = Artifacts{}

const readArtifacts = `SELECT job_id, type, format, filename, size, encode(sha256, 'hex'), object, created_at,
	expires_at FROM artifacts`

func scanArtifact(row pgx.CollectableRow) (execution.Artifact, error) {
	var a execution.Artifact
	var expires *time.Time
	err := row.Scan(&a.JobID, &a.Type, &a.Format, &a.Filename, &a.Size, &a.SHA256, &a.Object, &a.CreatedAt, &expires)
	a.CreatedAt, a.ExpiresAt = a.CreatedAt.UTC(), timeOf(expires)
	return a, err //nolint:wrapcheck // the caller wraps it
}

// queueArtifact stores an artifact instead of the one of the same type, whose object is then unused. The returned
// statement affects no row if the object of the new one is not among the unused ones.
func queueArtifact(batch *pgx.Batch, a execution.Artifact) *pgx.QueuedQuery {
	removed := batch.Queue(`DELETE FROM unused_objects WHERE object = $1`, a.Object)
	batch.Queue(`INSERT INTO unused_objects (object, since)
		SELECT object, $3 FROM artifacts WHERE job_id = $1 AND type = $2`, a.JobID, a.Type, a.CreatedAt)
	batch.Queue(`
		INSERT INTO artifacts (job_id, type, format, filename, size, sha256, object, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, decode($6, 'hex'), $7, $8, $9)
		ON CONFLICT (job_id, type) DO UPDATE SET format = excluded.format, filename = excluded.filename,
			size = excluded.size, sha256 = excluded.sha256, object = excluded.object, created_at = excluded.created_at,
			expires_at = excluded.expires_at`,
		a.JobID, a.Type, a.Format, a.Filename, a.Size, a.SHA256, a.Object, a.CreatedAt, nullable(a.ExpiresAt))
	return removed
}

// Reserve records an object that is about to be stored, as unused.
func (s Artifacts) Reserve(ctx context.Context, object string, at time.Time) error {
	if _, err := s.Pool.Exec(ctx, `INSERT INTO unused_objects (object, since) VALUES ($1, $2)`, object, at); err != nil {
		return postgres.Unavailable(ctx, fmt.Errorf("reserve object %s: %w", object, err))
	}
	return nil
}

// Find returns an artifact of a job; nil if there is none.
func (s Artifacts) Find(ctx context.Context, jobID int64, kind string) (*execution.Artifact, error) {
	// A failed query is reported by its rows.
	rows, _ := s.Pool.Query(ctx, readArtifacts+` WHERE job_id = $1 AND type = $2`, jobID, kind)
	a, err := pgx.CollectExactlyOneRow(rows, scanArtifact)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil //nolint:nilnil // documented
	case err != nil:
		return nil, postgres.Unavailable(ctx, fmt.Errorf("read the artifacts of job %d: %w", jobID, err))
	default:
		return &a, nil
	}
}

// Named returns those of the objects that an artifact has, or that are recorded as unused.
func (s Artifacts) Named(ctx context.Context, objects []string) (map[string]bool, error) {
	rows, err := s.Pool.Query(ctx, `
		SELECT object FROM artifacts WHERE object = ANY ($1)
		UNION ALL SELECT object FROM unused_objects WHERE object = ANY ($1)`, objects)
	if err != nil {
		return nil, fmt.Errorf("find %d objects: %w", len(objects), err)
	}
	named := make(map[string]bool, len(objects))
	var object string
	if _, err := pgx.ForEachRow(rows, []any{&object}, func() error {
		named[object] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find %d objects: %w", len(objects), err)
	}
	return named, nil
}

// Expire removes at most limit artifacts that have expired, whose objects are then unused. It returns how many.
func (s Artifacts) Expire(ctx context.Context, now time.Time, limit int) (int, error) {
	tag, err := s.Pool.Exec(ctx, `
		WITH expired AS (
			SELECT job_id, type FROM artifacts WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
			FOR UPDATE SKIP LOCKED),
		removed AS (
			DELETE FROM artifacts AS a USING expired AS e WHERE a.job_id = e.job_id AND a.type = e.type
			RETURNING a.object)
		INSERT INTO unused_objects (object, since) SELECT object, $1 FROM removed`, now, limit)
	if err != nil {
		return 0, fmt.Errorf("remove expired artifacts: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// Collect passes at most limit objects that are unused since a time to remove, and forgets those that it removed. It
// returns how many these are, and the errors of remove.
func (s Artifacts) Collect(
	ctx context.Context, before time.Time, limit int, remove func(ctx context.Context, object string) error,
) (int, error) {
	var removed []string
	var failed error
	err := postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT object FROM unused_objects WHERE since <= $1 ORDER BY since LIMIT $2 FOR UPDATE SKIP LOCKED`, before, limit)
		if err != nil {
			return fmt.Errorf("read unused objects: %w", err)
		}
		objects, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("read unused objects: %w", err)
		}
		for _, object := range objects {
			if err := remove(ctx, object); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			removed = append(removed, object)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM unused_objects WHERE object = ANY ($1)`, removed); err != nil {
			return fmt.Errorf("forget removed objects: %w", err)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(removed), failed
}
