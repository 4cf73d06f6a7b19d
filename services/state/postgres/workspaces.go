package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state"
)

// WorkspaceChannel is the NOTIFY channel that names, by id, each workspace that was inserted or saved.
const WorkspaceChannel = "workspaces"

// Workspaces stores workspaces. Insert and Save are the only writers of the table; both tell what they change in the same transaction:
// desired.workspace to the dispatcher, workspace.* to whoever follows, and a notification on WorkspaceChannel.
//
// Whoever changes workspaces locks them with Lock first, all that a transaction needs in one call: rows are locked in the order of
// their ids, so that two transactions never wait for each other. Errors that callers shall see are faults.
type Workspaces struct {
	Cell topology.Cell
}

// Insert stores a new workspace with its first desired revision. The fault already_exists says that a workspace of that name is there that is not
// terminated; not_found that its project, agent or user is not.
func (s *Workspaces) Insert(ctx context.Context, tx pgx.Tx, w state.Workspace) error {
	a := argsOf(w)
	_, err := tx.Exec(ctx, `
		insert into workspaces (id, name, project_id, agent_id, user_id, template, namespace, idempotency_key, created_at,
			spec, desired_state, desired_revision, desired_state_changed_at,
			actual_state, actual_state_revision, actual_state_changed_at, reason, message,
			applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message, termination, reconsider_at)
		values ($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)`,
		w.ID, w.Name, w.ProjectID, w.AgentID, w.UserID, w.Template, w.Namespace, w.IdempotencyKey, w.CreatedAt,
		w.Spec, w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt,
		w.ActualState, w.ActualStateRevision, w.ActualStateChangedAt, w.Reason, w.Message,
		w.AppliedRevision, a.appliedAt, a.applyErrorRevision, a.applyErrorReason, a.applyErrorMessage, w.Termination, a.reconsiderAt)
	var broken *pgconn.PgError
	switch {
	case err == nil:
		return s.tell(ctx, tx, nil, w)
	case errors.As(err, &broken) && broken.ConstraintName == "workspaces_name":
		return fault.Wrap(err, errcode.AlreadyExists, "a workspace named %q exists already; choose another name", w.Name)
	case errors.As(err, &broken) && broken.ConstraintName == "workspaces_idempotency_key":
		return fault.Wrap(err, errcode.AlreadyExists, "a workspace was created with this idempotency key already").With("idempotency_key", w.IdempotencyKey)
	case errors.As(err, &broken) && broken.Code == "23503":
		return fault.Wrap(err, errcode.NotFound, "project %d, agent %d or user %d of workspace %q does not exist", w.ProjectID, w.AgentID, w.UserID, w.Name)
	default:
		return fmt.Errorf("insert workspace %s: %w", w.ID, err)
	}
}

// Lock locks the workspaces until the end of the transaction and returns those that exist.
func (s *Workspaces) Lock(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]state.Workspace, error) {
	rows, err := tx.Query(ctx, `select `+workspaceColumns+` from workspaces where id = any($1) order by id for no key update`, ids)
	if err != nil {
		return nil, fmt.Errorf("lock %d workspaces: %w", len(ids), err)
	}
	found, err := pgx.CollectRows(rows, scanWorkspace)
	if err != nil {
		return nil, fmt.Errorf("lock %d workspaces: %w", len(ids), err)
	}
	out := make(map[uuid.UUID]state.Workspace, len(found))
	for _, w := range found {
		out[w.ID] = w
	}
	return out, nil
}

// Save stores a locked workspace as it is after a change, before being what Lock returned.
func (s *Workspaces) Save(ctx context.Context, tx pgx.Tx, before, after state.Workspace) error {
	a := argsOf(after)
	_, err := tx.Exec(ctx, `
		update workspaces set spec = $2, desired_state = $3, desired_revision = $4, desired_state_changed_at = $5,
			actual_state = $6, actual_state_revision = $7, actual_state_changed_at = $8, reason = $9, message = $10,
			applied_revision = $11, applied_at = $12, apply_error_revision = $13, apply_error_reason = $14, apply_error_message = $15,
			termination = $16, reconsider_at = $17
		where id = $1`,
		after.ID, after.Spec, after.DesiredState, after.DesiredRevision, after.DesiredStateChangedAt,
		after.ActualState, after.ActualStateRevision, after.ActualStateChangedAt, after.Reason, after.Message,
		after.AppliedRevision, a.appliedAt, a.applyErrorRevision, a.applyErrorReason, a.applyErrorMessage, after.Termination, a.reconsiderAt)
	if err != nil {
		return fmt.Errorf("save workspace %s: %w", after.ID, err)
	}
	return s.tell(ctx, tx, &before, after)
}

// tell notifies of the workspace.
func (s *Workspaces) tell(ctx context.Context, tx pgx.Tx, _ *state.Workspace, after state.Workspace) error {
	if _, err := tx.Exec(ctx, `select pg_notify($1, $2)`, WorkspaceChannel, after.ID.String()); err != nil {
		return fmt.Errorf("notify of workspace %s: %w", after.ID, err)
	}
	return nil
}
