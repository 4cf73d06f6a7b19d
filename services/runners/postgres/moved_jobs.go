package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/execution"
)

// readMoved returns what is left of a job that ended here and moved with its organization.
const readMoved = `SELECT m.state, c.number, c.token_hash, c.expires_at, c.claimed_at
	FROM moved_jobs AS m JOIN claims AS c ON c.job_id = m.job_id WHERE m.job_id = $1`

// movedSnapshot returns what a job that moved needs to answer the last requests of its runner again. Its trace and its
// artifacts are in the other cell.
func movedSnapshot(ctx context.Context, db Querier, jobID int64) (execution.Snapshot, error) {
	var s execution.Snapshot
	rows, err := db.Query(ctx, readMoved, jobID)
	if err != nil {
		return s, fmt.Errorf("read job %d, which moved: %w", jobID, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (execution.Snapshot, error) {
		var c execution.Claim
		s := execution.Snapshot{Claim: &c}
		s.Job.ID = jobID
		err := row.Scan(&s.Job.State, &c.Number, &c.TokenHash, &c.ExpiresAt, &c.ClaimedAt)
		s.Job.Claims = c.Number
		return s, err //nolint:wrapcheck // wrapped below
	})
	switch {
	case err != nil:
		return s, fmt.Errorf("read job %d, which moved: %w", jobID, err)
	case len(found) == 0:
		return s, fault.New(errcode.NotFound, "job %d does not exist", jobID)
	default:
		return found[0], nil
	}
}
