package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
)

// Tables whose rows move.
const (
	tableRunners     = "runners"
	tableManagers    = "runner_managers"
	tablePipelines   = "pipelines"
	tableDefinitions = "definitions"
	tableJobs        = "jobs"
	tableDelayed     = "delayed_jobs"
	tableTraces      = "traces"
	tableArtifacts   = move.TableArtifacts
	// tablePrerequisites has what admission reported.
	tablePrerequisites = "prerequisites"
)

// Arrivals stores organizations that come from other cells.
type Arrivals struct {
	Moves

	// CellNumber is that of this cell. Another cell makes no ids of its range.
	CellNumber int64
}

// freeID is a condition for ids that this cell does not make later.
func freeID() string {
	return fmt.Sprintf(` AND ((r.id - 1) / %d <> $3 OR r.id <= (SELECT last_value FROM ids))`, idrange.Size)
}

// insertRow stores a row that came as JSON. Columns are values of the row r. $2 is the organization or the pipeline, $3
// the number of the cell.
func insertRow(table, columns, condition string, values ...string) string {
	return `INSERT INTO ` + table + ` (` + columns + `) SELECT ` + strings.NewReplacer(values...).Replace(columns) +
		` FROM json_populate_record(NULL::` + table + `, $1::json) AS r WHERE ` + condition
}

// runnerRows are the statements for rows of runners, by table. A repeated row changes nothing.
func runnerRows() map[string]string {
	return map[string]string{
		tableRunners: insertRow(tableRunners, runnerColumns,
			`r.organization_id = $2 AND r.type IN ('group_type', 'project_type')`+freeID()+` ON CONFLICT (id) DO UPDATE
			SET id = excluded.id WHERE runners.organization_id = $2`),
		tableManagers: insertRow(tableManagers,
			`id, runner_id, system_id, version, revision, platform, architecture, executor, address, created_at, contacted_at`,
			`EXISTS (SELECT FROM runners WHERE id = r.runner_id AND organization_id = $2)`+freeID()+` ON CONFLICT (id) DO UPDATE
			SET id = excluded.id WHERE runner_managers.runner_id = excluded.runner_id`),
	}
}

// pipelineRows are the statements for rows of a pipeline, by table. $2 is the pipeline.
func pipelineRows() map[string]string {
	const ofPipeline = `r.pipeline_id = $2 AND $3::bigint IS NOT NULL`
	const ofJob = `EXISTS (SELECT FROM jobs WHERE id = r.job_id AND pipeline_id = $2) AND $3::bigint IS NOT NULL`
	return map[string]string{
		tableDefinitions: insertRow(tableDefinitions,
			`pipeline_id, name, position, job_group, stage_index, run_when, needs, content`, ofPipeline),
		tableJobs: insertRow(tableJobs, jobColumns, `r.pipeline_id = $2 AND r.state NOT IN ('running', 'canceling')
			AND EXISTS (SELECT FROM pipelines AS p WHERE p.id = $2 AND p.organization_id = r.organization_id
				AND p.project_id = r.project_id)`+freeID()),
		tableDelayed:       insertRow(tableDelayed, `job_id, pipeline_id, begins_at`, ofPipeline+` AND `+ofJob),
		tablePrerequisites: insertRow(tablePrerequisites, `job_id, preparation, controller_id, content`, ofJob),
		tableTraces:        insertRow(tableTraces, `job_id, state, updated_at, watched_until`, ofJob),
		tableArtifacts: `WITH r AS (SELECT ` + artifactColumns + ` FROM json_populate_record(NULL::artifacts, $1::json)),
			used AS (DELETE FROM unused_objects WHERE object = (SELECT object FROM r) RETURNING object)
			INSERT INTO artifacts (` + artifactColumns + `)
			SELECT ` + artifactColumns + ` FROM r WHERE object IN (SELECT object FROM used) AND ` + ofJob,
	}
}

const artifactColumns = `job_id, type, format, filename, size, sha256, object, created_at, expires_at`

// insertPipeline stores a pipeline for the organization $2. Its request id stays behind if this cell has another
// pipeline with it.
func insertPipeline() string {
	return insertRow(tablePipelines, `id, project_id, organization_id, ref, source, protected, state, warnings, canceled,
		request_id, request_hash, created_by, created_at, finished_at`,
		`r.organization_id = $2 AND r.id = $4`+freeID()+` ON CONFLICT (id) DO NOTHING`,
		"request_id", `CASE WHEN NOT EXISTS (SELECT FROM pipelines AS p WHERE p.project_id = r.project_id
			AND p.created_by = r.created_by AND p.request_id = r.request_id) THEN request_id END`)
}

// BeginArrival stores that an organization comes. It reports false if it was opened before. Faults: failed_precondition
// for a canceled move, and while another one goes on.
func (s Arrivals) BeginArrival(ctx context.Context, m move.Move) (begun bool, err error) {
	err = s.locked(ctx, m.OrganizationID, func(tx pgx.Tx) error {
		known, err := readMoves(ctx, tx, `id = $1 OR (organization_id = $2 AND phase <> 'canceled')
			ORDER BY id = $1 DESC, ended_at IS NULL DESC, number DESC LIMIT 1`, m.ID, m.OrganizationID)
		if err != nil {
			return err
		}
		if len(known) == 1 && (known[0].ID == m.ID || known[0].EndedAt.IsZero()) {
			begun, err = repeated(known[0], m)
			return err
		}
		if len(known) == 1 && known[0].Number >= m.Number {
			return fault.New(errcode.FailedPrecondition, "move %s of organization %d has the number %d, but this cell knows %d",
				m.ID, m.OrganizationID, m.Number, known[0].Number)
		}
		if err := requireNothing(ctx, tx, m.OrganizationID); err != nil {
			return err
		}
		begun = true
		_, err = tx.Exec(ctx, `INSERT INTO moves (id, organization_id, arrival, cell, number, phase, started_by, started_at)
			VALUES ($1, $2, true, $3, $4, 'arriving', $5, $6)`,
			m.ID, m.OrganizationID, m.Cell, m.Number, m.StartedBy, s.Now())
		return err //nolint:wrapcheck // wrapped by locked
	})
	return begun, err
}

// requireNothing refuses an organization that has something here: a cancellation of the move would remove it.
func requireNothing(ctx context.Context, tx pgx.Tx, organizationID int64) error {
	var found bool
	const read = `SELECT EXISTS (SELECT FROM runners WHERE organization_id = $1)
		OR EXISTS (SELECT FROM pipelines WHERE organization_id = $1)`
	if err := tx.QueryRow(ctx, read, organizationID).Scan(&found); err != nil {
		return fmt.Errorf("find what organization %d has: %w", organizationID, err)
	}
	if found {
		return fault.New(errcode.FailedPrecondition,
			"organization %d has runners or pipelines in this cell: it is here already, or both cells have the same cell.number",
			organizationID)
	}
	return nil
}

// repeated returns whether a move that this cell knows may still begin.
func repeated(known, m move.Move) (bool, error) {
	switch {
	case known.ID != m.ID:
		return false, errOtherMove(known)
	case !known.Arrival || known.OrganizationID != m.OrganizationID || known.Phase == move.Canceled:
		return false, fault.New(errcode.FailedPrecondition, "move %s was canceled here: begin a new one", m.ID)
	default:
		return known.Phase == move.Arriving, nil
	}
}

// locked runs fn in a transaction that has the organization alone.
func (s Arrivals) locked(ctx context.Context, organizationID int64, fn func(tx pgx.Tx) error) error {
	err := postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockOrganization, organizationID); err != nil {
			return fmt.Errorf("lock organization %d: %w", organizationID, err)
		}
		return fn(tx)
	})
	return postgres.Unavailable(ctx, refusedRow(err))
}

// inPhase returns the organization of an arrival in a phase, which it keeps until the end of the transaction.
func inPhase(ctx context.Context, tx pgx.Tx, id string, phase move.Phase) (organizationID int64, err error) {
	const read = `SELECT organization_id FROM moves WHERE id = $1 AND arrival AND phase = $2 FOR SHARE`
	err = tx.QueryRow(ctx, read, id, phase).Scan(&organizationID)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fault.New(errcode.FailedPrecondition, "move %s is not %s in this cell", id, phase)
	}
	return organizationID, err //nolint:wrapcheck // the caller wraps it
}

// StoreRunners stores rows of runners that arrive. next returns none at the end.
func (s Arrivals) StoreRunners(
	ctx context.Context, moveID string, next func() ([]*runnersv1.MovedRow, error),
) error {
	statements := runnerRows()
	err := postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		organization, err := inPhase(ctx, tx, moveID, move.Arriving)
		if err != nil {
			return err
		}
		for {
			rows, err := next()
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				break
			}
			if err := insertRows(ctx, tx, statements, rows, organization, s.CellNumber); err != nil {
				return err
			}
		}
		return s.runners().publishNew(ctx, tx)
	})
	return postgres.Unavailable(ctx, refusedRow(err))
}

// insertRows stores rows, each of which must be valid.
func insertRows(
	ctx context.Context, tx pgx.Tx, statements map[string]string, rows []*runnersv1.MovedRow, owner, cell int64,
) error {
	var batch pgx.Batch
	for i, row := range rows {
		statement, found := statements[row.GetTable()]
		if !found {
			return fault.New(errcode.InvalidArgument, "rows[%d]: no row of a table %.50q is expected", i, row.GetTable())
		}
		batch.Queue(statement, string(row.GetContent()), owner, cell).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != 1 {
				return fault.New(errcode.InvalidArgument, "rows[%d]: a row of the table %s does not belong to %d, or its id "+
					"is one of this cell", i, row.GetTable(), owner)
			}
			return nil
		})
	}
	return tx.SendBatch(ctx, &batch).Close() //nolint:wrapcheck // the caller wraps it
}

// refusedRow makes a fault of an error of the database about a value that came from another cell.
func refusedRow(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (strings.HasPrefix(refused.Code, "22") || strings.HasPrefix(refused.Code, "23")) {
		return fault.Wrap(err, errcode.FailedPrecondition, "a row from the other cell is refused: %s", refused.Message)
	}
	return err
}

// Piece is a part of a pipeline that arrives.
type Piece struct {
	Rows     []*runnersv1.MovedRow
	Traces   []*runnersv1.MovedTracePart
	Complete bool
}

// StorePipeline stores a pipeline, whose jobs begin or wait from then on. One that is stored stays as it is. next
// returns the pieces, the row of the pipeline first.
func (s Arrivals) StorePipeline(ctx context.Context, moveID string, id int64, next func() (Piece, error)) error {
	err := postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		organization, err := inPhase(ctx, tx, moveID, move.Open)
		if err != nil {
			return err
		}
		piece, err := next()
		if err != nil {
			return err
		}
		isNew, err := s.insertPipeline(ctx, tx, piece, id, organization)
		if err != nil || !isNew {
			return err
		}
		piece.Rows = piece.Rows[1:]
		for statements := pipelineRows(); ; {
			if err := s.insertPiece(ctx, tx, statements, piece, id); err != nil {
				return err
			}
			if piece.Complete {
				break
			}
			if piece, err = next(); err != nil {
				return err
			}
		}
		return s.arrive(ctx, tx, id)
	})
	return postgres.Unavailable(ctx, refusedRow(err))
}

// insertPipeline stores the first row. It reports false if the pipeline is stored already.
func (s Arrivals) insertPipeline(
	ctx context.Context, tx pgx.Tx, piece Piece, id, organization int64,
) (isNew bool, err error) {
	if len(piece.Rows) == 0 || piece.Rows[0].GetTable() != tablePipelines {
		return false, fault.New(errcode.InvalidArgument, "rows[0]: the row of pipeline %d is expected first", id)
	}
	content := string(piece.Rows[0].GetContent())
	tag, err := tx.Exec(ctx, insertPipeline(), content, organization, s.CellNumber, id)
	if err != nil || tag.RowsAffected() == 1 {
		return err == nil, err //nolint:wrapcheck // the caller wraps it
	}
	var stored bool
	const exists = `SELECT EXISTS (SELECT FROM pipelines WHERE id = $1 AND organization_id = $2)`
	if err := tx.QueryRow(ctx, exists, id, organization).Scan(&stored); err != nil {
		return false, fmt.Errorf("read pipeline %d: %w", id, err)
	}
	if !stored {
		return false, fault.New(errcode.InvalidArgument,
			"rows[0]: pipeline %d is not one of organization %d, or its id is one of this cell", id, organization)
	}
	return false, nil
}

func (s Arrivals) insertPiece(
	ctx context.Context, tx pgx.Tx, statements map[string]string, piece Piece, id int64,
) error {
	if err := insertRows(ctx, tx, statements, piece.Rows, id, s.CellNumber); err != nil {
		return fmt.Errorf("store pipeline %d: %w", id, err)
	}
	var batch pgx.Batch
	for _, part := range piece.Traces {
		batch.Queue(`INSERT INTO trace_parts (job_id, generation, start, data)
			SELECT $1, $2, $3, $4 WHERE EXISTS (SELECT FROM jobs WHERE id = $1 AND pipeline_id = $5)`,
			part.GetJobId(), part.GetGeneration(), part.GetStart(), part.GetData(), id)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store the traces of pipeline %d: %w", id, err)
	}
	return nil
}

// arrive publishes that the jobs of a pipeline are here, and lets them wait for runners.
func (s Arrivals) arrive(ctx context.Context, tx pgx.Tx, id int64) error {
	jobs, err := readJobs(ctx, tx, `pipeline_id = $1 ORDER BY id`, id)
	if err != nil {
		return err
	}
	changes, ids := make([]job.Change, len(jobs)), make([]int64, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
		if changes[i], err = j.Arrive(s.Now()); err != nil {
			return fmt.Errorf("receive pipeline %d: %w", id, err)
		}
	}
	if err := s.Jobs.Store(ctx, tx, changes...); err != nil {
		return err
	}
	var batch pgx.Batch
	batch.Queue(`DELETE FROM moved_jobs WHERE job_id = ANY ($1)`, ids)
	batch.Queue(`SELECT pg_notify($1, $2::bigint::text)`, PipelineChannel, id)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("receive pipeline %d: %w", id, err)
	}
	return nil
}

// Arrival returns an arrival; nil if this cell does not know it.
func (s Arrivals) Arrival(ctx context.Context, id string) (*move.Move, error) {
	found, err := readMoves(ctx, s.Pool, `id = $1 AND arrival`, id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// LatestArrival implements [move.Arrivals].
func (s Arrivals) LatestArrival(ctx context.Context, organizationID int64) (move.Move, error) {
	found, err := readMoves(ctx, s.Pool, `organization_id = $1 AND arrival ORDER BY started_at DESC LIMIT 1`,
		organizationID)
	if err == nil && len(found) == 0 {
		err = fault.New(errcode.NotFound, "organization %d was never moved to this cell", organizationID)
	}
	if err != nil {
		return move.Move{}, err
	}
	return found[0], nil
}

// OpenArrival opens the organization here, unless it is open. Fault failed_precondition for a move that was canceled.
func (s Arrivals) OpenArrival(ctx context.Context, m move.Move) error {
	return s.end(ctx, m, `UPDATE moves SET phase = 'open' WHERE id = $1 AND arrival AND phase = 'arriving'`, move.Open)
}

// CompleteArrival ends the move here.
func (s Arrivals) CompleteArrival(ctx context.Context, m move.Move) error {
	return s.end(ctx, m, `UPDATE moves SET phase = 'done', ended_at = $2 WHERE id = $1 AND arrival AND phase = 'open'`,
		move.Done, s.Now())
}

// end changes the phase of an arrival that does not have the phase or a later one.
func (s Arrivals) end(ctx context.Context, m move.Move, update string, phase move.Phase, args ...any) error {
	return s.locked(ctx, m.OrganizationID, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, update, append([]any{m.ID}, args...)...)
		if err != nil || tag.RowsAffected() == 1 {
			return err //nolint:wrapcheck // wrapped by locked
		}
		known, err := readMoves(ctx, tx, `id = $1 AND arrival`, m.ID)
		switch {
		case err != nil:
			return err
		case len(known) == 1 && (known[0].Phase == phase || known[0].Phase == move.Done):
			return nil
		case len(known) == 1 && known[0].Phase == move.Canceled:
			return move.ErrArrivalCanceled(m.ID)
		default:
			return fault.New(errcode.FailedPrecondition, "move %s cannot become %s in this cell: it did not begin", m.ID, phase)
		}
	})
}

// CancelArrival removes what arrived. A move that this cell does not know cannot begin here afterwards. Fault
// failed_precondition for an organization that is open.
func (s Arrivals) CancelArrival(ctx context.Context, m move.Move) error {
	return s.locked(ctx, m.OrganizationID, func(tx pgx.Tx) error {
		known, err := readMoves(ctx, tx, `id = $1`, m.ID)
		switch {
		case err != nil:
			return err
		case len(known) == 0:
			_, err = tx.Exec(ctx, `INSERT INTO moves (id, organization_id, arrival, cell, number, phase, started_at, ended_at)
				VALUES ($1, $2, true, '', 0, 'canceled', $3, $3)`, m.ID, m.OrganizationID, s.Now())
			return err //nolint:wrapcheck // wrapped by locked
		case !known[0].Arrival || known[0].OrganizationID != m.OrganizationID:
			return fault.New(errcode.FailedPrecondition, "move %s is not one of organization %d to this cell",
				m.ID, m.OrganizationID)
		case known[0].Phase == move.Canceled:
			return nil
		case known[0].Phase != move.Arriving:
			return fault.New(errcode.FailedPrecondition, "organization %d is open in this cell: move it back", m.OrganizationID)
		}
		if err := s.deleteRunnersOf(ctx, tx, m.OrganizationID); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE moves SET phase = 'canceled', ended_at = $2 WHERE id = $1`, m.ID, s.Now())
		return err //nolint:wrapcheck // wrapped by locked
	})
}
