package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
)

// WorkspaceChannel is the NOTIFY channel with the id of each inserted or saved workspace, and of each whose agent
// reported for the first time, became silent, returned or was revoked.
const WorkspaceChannel = "workspaces"

// Workspaces stores workspaces. Insert and Save are the only writers of the table, except that a change of settings
// queues workspaces for rendering. Both notify WorkspaceChannel in the caller's transaction. The same transaction must
// read the settings after the lock, and publish the manifests of a new desired revision: it counts as rendered.
//
// A caller locks workspaces before it changes them, in the order of their ids, so that transactions never
// deadlock. Errors for the API's callers are faults.
type Workspaces struct {
	// NoNotify stores without notifications. A rebuild sets it.
	NoNotify bool
}

// Insert stores a new workspace. It returns the fault already_exists if the name or the idempotency key is in use, and
// not_found if the project, agent or user does not exist. It returns the fault of [directory.Organization.Changeable].
func (s *Workspaces) Insert(ctx context.Context, tx pgx.Tx, w workspace.Workspace) error {
	if err := lockChangeable(ctx, tx, directory.Scope{Kind: directory.ScopeProject, ID: w.ProjectID}); err != nil {
		return err
	}
	a := argsOf(w)
	_, err := tx.Exec(ctx, `
		insert into workspaces (id, name, project_id, agent_id, user_id, template, namespace, idempotency_key, created_at,
			spec, desired_state, desired_revision, desired_state_changed_at,
			actual_state, actual_state_revision, actual_state_changed_at, reason, message,
			applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message,
			termination, reconsider_at, desired_state_since, expiry_warned_of, applied_uid, applied_generation, age_warned_of,
			remaining_reason, remaining_message, rendered_revision)
		values ($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
			$22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $12)`+s.returning("id"),
		w.ID, w.Name, w.ProjectID, w.AgentID, w.UserID, w.Template, w.Namespace, w.IdempotencyKey, w.CreatedAt,
		w.Spec, w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt,
		w.ActualState, w.ActualStateRevision, w.ActualStateChangedAt, w.Reason, w.Message,
		w.AppliedRevision, a.appliedAt, a.applyErrorRevision, a.applyErrorReason, a.applyErrorMessage, w.Termination,
		a.recomputeAt, w.DesiredStateSince, a.warnedStateDeadline, w.AppliedUID, w.AppliedGeneration, a.warnedAgeDeadline,
		w.RemainingReason, w.RemainingMessage)
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
	case errors.As(err, &pgErr) && pgErr.ConstraintName == "workspaces_name":
		return fault.Wrap(err, errcode.AlreadyExists, "a workspace named %q exists already; choose another name", w.Name)
	case errors.As(err, &pgErr) && pgErr.ConstraintName == "workspaces_idempotency_key":
		return fault.Wrap(err, errcode.AlreadyExists, "a workspace with this idempotency key exists already").
			With("idempotency_key", w.IdempotencyKey)
	case errors.As(err, &pgErr) && pgErr.Code == foreignKeyViolation:
		return fault.Wrap(err, errcode.NotFound, "project %d, agent %d or user %d of workspace %q does not exist",
			w.ProjectID, w.AgentID, w.UserID, w.Name)
	default:
		return fmt.Errorf("insert workspace %s: %w", w.ID, err)
	}
	return nil
}

// returning is the clause of a statement that notifies WorkspaceChannel of each written row.
func (s *Workspaces) returning(id string) string {
	if s.NoNotify {
		return ""
	}
	return ` returning pg_notify('` + WorkspaceChannel + `', ` + id + `::text)`
}

// Lock locks the workspaces until the end of the transaction and returns those that exist.
func (s *Workspaces) Lock(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]workspace.Workspace, error) {
	var batch pgx.Batch
	out := queueLock(&batch, ids)
	if err := send(ctx, tx, &batch, "lock %d workspaces", len(ids)); err != nil {
		return nil, err
	}
	return out, nil
}

// queueLock adds the statement that locks the workspaces. The map is filled when the batch is sent.
func queueLock(batch *pgx.Batch, ids []uuid.UUID) map[uuid.UUID]workspace.Workspace {
	out := make(map[uuid.UUID]workspace.Workspace, len(ids))
	query := `select ` + workspaceColumns + ` from workspaces where id = any($1) order by id for no key update`
	batch.Queue(query, ids).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scanWorkspace)
		for _, w := range found {
			out[w.ID] = w
		}
		return err //nolint:wrapcheck // send wraps it
	})
	return out
}

// Save stores locked workspaces. Each workspace must occur once.
func (s *Workspaces) Save(ctx context.Context, tx pgx.Tx, workspaces ...workspace.Workspace) error {
	if len(workspaces) == 0 {
		return nil
	}
	var rows workspaceRows
	for i := range workspaces {
		if err := rows.add(workspaces[i]); err != nil {
			return err
		}
	}
	var batch pgx.Batch
	rows.update(&batch, s.returning("w.id"))
	return send(ctx, tx, &batch, "save %d workspaces", len(workspaces))
}

// LockRetained locks all workspaces except those that terminated more than 30 days ago, and returns them.
func (s *Workspaces) LockRetained(ctx context.Context, tx pgx.Tx) ([]workspace.Workspace, error) {
	rows, err := tx.Query(ctx, `
		select `+workspaceColumns+` from workspaces
			where actual_state <> 'terminated' or actual_state_changed_at > now() - interval '30 days'
		order by id for no key update`)
	if err != nil {
		return nil, fmt.Errorf("lock all workspaces: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanWorkspace)
	if err != nil {
		return nil, fmt.Errorf("lock all workspaces: %w", err)
	}
	return found, nil
}

// send sends the statements of a batch in one round trip.
func send(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, what string, args ...any) error {
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf(what+": %w", append(args, err)...)
	}
	return nil
}
