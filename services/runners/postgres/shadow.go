package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
	"lockstep.internal/services/runners/job"
)

// Shadow is a second, temporary table of jobs, which a rebuild fills. It is not safe for concurrent use.
type Shadow struct{ *readmodel.ShadowTables }

// NewShadow creates an empty shadow table in the session of a connection.
func NewShadow(ctx context.Context, conn *pgx.Conn) (*Shadow, error) {
	tables, err := readmodel.NewShadowTables(ctx, conn, []readmodel.Table{{Name: "jobs", Key: []string{"id"}}}, "")
	if err != nil {
		return nil, err
	}
	return &Shadow{tables}, nil
}

// PutReplayed stores jobs of events in the table jobs, which is the shadow table in its session. The highest revision
// of a job counts. A job that moved to another cell is removed.
func PutReplayed(ctx context.Context, tx pgx.Tx, changes []job.Change) error {
	const replace = insertJobValues + ` ON CONFLICT (id) DO UPDATE SET state = excluded.state,
		revision = excluded.revision, retried_by = excluded.retried_by, claims = excluded.claims,
		runner_id = excluded.runner_id,
		manager_id = excluded.manager_id, run_timeout_s = excluded.run_timeout_s, reason = excluded.reason,
		exit_code = excluded.exit_code, canceled_by = excluded.canceled_by, pending_since = excluded.pending_since,
		started_at = excluded.started_at, finished_at = excluded.finished_at, tags = excluded.tags,
		admission = excluded.admission, preparing_since = excluded.preparing_since
		WHERE jobs.revision < excluded.revision`
	var batch pgx.Batch
	for _, c := range changes {
		if c.Event == job.EventMoved {
			batch.Queue(`DELETE FROM jobs WHERE id = $1 AND revision < $2`, c.Job.ID, c.Job.Revision)
			continue
		}
		batch.Queue(replace, columns(c.Job)...)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store %d replayed jobs: %w", len(changes), err)
	}
	return nil
}

// LockJobs blocks all changes of jobs until the transaction ends.
func (s *Shadow) LockJobs(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `LOCK TABLE `+s.LiveName("jobs")+` IN SHARE MODE`); err != nil {
		return fmt.Errorf("lock the table of jobs: %w", err)
	}
	return nil
}

// Unpublished returns the number of events that are not published yet.
func Unpublished(ctx context.Context, tx pgx.Tx) (int, error) {
	var n int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the events that are not published: %w", err)
	}
	return n, nil
}

// Keep copies the jobs of the live table of which the stream has no event any more.
func (s *Shadow) Keep(ctx context.Context, tx pgx.Tx) error {
	//nolint:unqueryvet // both tables have the same columns
	_, err := tx.Exec(ctx, readmodel.Render(`INSERT INTO {shadow} SELECT l.* FROM {live} l ON CONFLICT DO NOTHING`,
		map[string]string{"shadow": readmodel.ShadowName("jobs"), "live": s.LiveName("jobs")}))
	if err != nil {
		return fmt.Errorf("keep jobs whose events the stream has lost: %w", err)
	}
	return nil
}

// EachJob calls handle with all jobs, in pages by id.
func EachJob(ctx context.Context, tx pgx.Tx, handle func([]job.Job) error) error {
	const page = 1000
	for last := int64(0); ; {
		jobs, err := readJobs(ctx, tx, `id > $1 ORDER BY id LIMIT $2`, last, page)
		if err != nil || len(jobs) == 0 {
			return err
		}
		if err := handle(jobs); err != nil {
			return err
		}
		last = jobs[len(jobs)-1].ID
	}
}
