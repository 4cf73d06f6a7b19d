package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// organizationLock is the key of the advisory lock of the organization with the id in a column or parameter. It comes
// before every lock of a row in a transaction.
const organizationLock = `hashtextextended(current_schema() || ' organization ' || %s::bigint, 0)`

var (
	shareOrganizations = `SELECT pg_advisory_xact_lock_shared(` + fmt.Sprintf(organizationLock, "id") + `)
		FROM (SELECT DISTINCT id FROM unnest($1::bigint[]) AS id ORDER BY id) AS organizations`
	tryOrganization  = `SELECT pg_try_advisory_xact_lock_shared(` + fmt.Sprintf(organizationLock, "$1") + `)`
	lockOrganization = `SELECT pg_advisory_xact_lock(` + fmt.Sprintf(organizationLock, "$1") + `)`
)

// notClosed selects rows of organizations that may be changed here.
const notClosed = `organization_id NOT IN (SELECT organization_id FROM closed_organizations)`

// readClosed returns why an organization is closed.
const readClosed = `SELECT organization_id, cell, phase, arrival FROM closed_organizations WHERE organization_id = `

// Owner selects the organization that owns a pipeline, a job or a runner. One field is set.
type Owner struct {
	OrganizationID, PipelineID, JobID, RunnerID int64
}

// of is a query for the id of the organization.
func (o Owner) of() (query string, id int64) {
	switch {
	case o.PipelineID != 0:
		return `SELECT organization_id FROM pipelines WHERE id = $1`, o.PipelineID
	case o.JobID != 0:
		return `SELECT organization_id FROM jobs WHERE id = $1`, o.JobID
	case o.RunnerID != 0:
		return `SELECT organization_id FROM runners WHERE id = $1`, o.RunnerID
	default:
		return `SELECT $1::bigint`, o.OrganizationID
	}
}

// shareOpen keeps moves of the organization from beginning until the transaction ends. It is called before any row is
// locked. Fault organization_moving for one that is closed.
func shareOpen(ctx context.Context, tx pgx.Tx, o Owner) error {
	query, id := o.of()
	var batch pgx.Batch
	batch.Queue(`SELECT pg_advisory_xact_lock_shared(`+fmt.Sprintf(organizationLock, "("+query+")")+`)`, id)
	var closed error
	batch.Queue(readClosed+`(`+query+`)`, id).Query(func(rows pgx.Rows) error {
		var err error
		closed, err = scanClosed(rows)
		return err
	})
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("lock an organization: %w", err)
	}
	return closed
}

// tryOpen is shareOpen for a transaction that has locked rows before: it does not wait for a move that begins.
func tryOpen(ctx context.Context, tx pgx.Tx, organizationID int64) error {
	var shared bool
	if err := tx.QueryRow(ctx, tryOrganization, organizationID).Scan(&shared); err != nil {
		return fmt.Errorf("lock organization %d: %w", organizationID, err)
	}
	if !shared {
		return fault.New(errcode.OrganizationMoving, "a move of organization %d begins or ends: try again", organizationID)
	}
	return shareOpen(ctx, tx, Owner{OrganizationID: organizationID})
}

// scanClosed returns the fault of a row of readClosed; nil if there is none.
func scanClosed(rows pgx.Rows) (closed, err error) {
	var organization int64
	var cell, phase string
	var arrival bool
	_, err = pgx.ForEachRow(rows, []any{&organization, &cell, &phase, &arrival}, func() error {
		closed = errClosed(organization, cell, phase, arrival)
		return nil
	})
	return closed, err
}

func errClosed(organization int64, cell, phase string, arrival bool) error {
	switch {
	case arrival:
		return fault.New(errcode.OrganizationMoving,
			"organization %d is being moved here from cell %s: try again in some minutes", organization, cell)
	case phase == "copying":
		return fault.New(errcode.OrganizationMoving,
			"organization %d is being moved to cell %s: try again in some minutes", organization, cell)
	default:
		return fault.New(errcode.OrganizationMoving, "organization %d is in cell %s: use that cell", organization, cell)
	}
}

// LockOrganization keeps moves of an organization from beginning until the transaction ends. Fault organization_moving
// for one that is being moved or has left.
func (Pipelines) LockOrganization(ctx context.Context, tx pgx.Tx, id int64) error {
	return shareOpen(ctx, tx, Owner{OrganizationID: id})
}

// LockOrganizationOf is LockOrganization for that of a pipeline, or else of a job.
func (Pipelines) LockOrganizationOf(ctx context.Context, tx pgx.Tx, pipelineID, jobID int64) error {
	return shareOpen(ctx, tx, Owner{PipelineID: pipelineID, JobID: jobID})
}

// Elsewhere returns the fault organization_moving if the organization is being moved here or has left.
func (s Runners) Elsewhere(ctx context.Context, organizationID int64) error {
	rows, err := s.Pool.Query(ctx, readClosed+`$1 AND (arrival OR phase <> 'copying')`, organizationID)
	if err != nil {
		return fmt.Errorf("read where organization %d is: %w", organizationID, err)
	}
	closed, err := scanClosed(rows)
	if err != nil {
		return fmt.Errorf("read where organization %d is: %w", organizationID, err)
	}
	return closed
}
