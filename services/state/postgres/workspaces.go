package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/render"
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
	// Render is how manifests are made.
	Render render.Options
	// Unexpected is called for each change of an actual state that the state diagram does not know. Defaults to nothing.
	Unexpected func(from, to domain.ActualState)
	// Derived has SaveAll store what clusters say alone: what is wanted stays, and nobody is told. For Shadow.
	Derived bool
}

// Insert stores a new workspace with its first desired revision. The fault already_exists says that a workspace of that name is there that is not
// terminated; not_found that its project, agent or user is not.
func (s *Workspaces) Insert(ctx context.Context, tx pgx.Tx, w domain.Workspace) error {
	a := argsOf(w)
	_, err := tx.Exec(ctx, `
		insert into workspaces (id, name, project_id, agent_id, user_id, template, namespace, idempotency_key, created_at,
			spec, desired_state, desired_revision, desired_state_changed_at,
			actual_state, actual_state_revision, actual_state_changed_at, reason, message,
			applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message, termination, reconsider_at,
			desired_state_since, expiry_warned_of, applied_uid, applied_generation, age_warned_of)
		values ($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)`,
		w.ID, w.Name, w.ProjectID, w.AgentID, w.UserID, w.Template, w.Namespace, w.IdempotencyKey, w.CreatedAt,
		w.Spec, w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt,
		w.ActualState, w.ActualStateRevision, w.ActualStateChangedAt, w.Reason, w.Message,
		w.AppliedRevision, a.appliedAt, a.applyErrorRevision, a.applyErrorReason, a.applyErrorMessage, w.Termination, a.reconsiderAt,
		w.DesiredStateSince, a.warnedOf, w.AppliedUID, w.AppliedGeneration, a.ageWarnedOf)
	var broken *pgconn.PgError
	switch {
	case err == nil:
		var batch pgx.Batch
		batch.Queue(`select pg_notify($1, $2)`, WorkspaceChannel, w.ID.String())
		if err := s.tell(ctx, &batch, []Saving{{After: w}}); err != nil {
			return err
		}
		return send(ctx, tx, &batch, "tell of workspace %s", w.ID)
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
func (s *Workspaces) Lock(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]domain.Workspace, error) {
	var batch pgx.Batch
	out := queueLock(&batch, ids)
	if err := send(ctx, tx, &batch, "lock %d workspaces", len(ids)); err != nil {
		return nil, err
	}
	return out, nil
}

// queueLock has the batch lock the workspaces; what it returns is filled when the batch is sent.
func queueLock(batch *pgx.Batch, ids []uuid.UUID) map[uuid.UUID]domain.Workspace {
	out := make(map[uuid.UUID]domain.Workspace, len(ids))
	batch.Queue(`select `+workspaceColumns+` from workspaces where id = any($1) order by id for no key update`, ids).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scanWorkspace)
		for _, w := range found {
			out[w.ID] = w
		}
		return err //nolint:wrapcheck // who sends the batch says what it asked for
	})
	return out
}

// Save stores a locked workspace as it is after a change, before being what Lock returned. It is nothing when nothing changed.
func (s *Workspaces) Save(ctx context.Context, tx pgx.Tx, before, after domain.Workspace) error {
	return s.SaveAll(ctx, tx, []Saving{{Before: before, After: after}})
}

// Saving is a locked workspace before and after a change.
type Saving struct{ Before, After domain.Workspace }

// SaveAll is Save for many workspaces, each named once.
func (s *Workspaces) SaveAll(ctx context.Context, tx pgx.Tx, savings []Saving) error {
	var changed []Saving
	var rows workspaceRows
	for _, saving := range savings {
		if s.Derived {
			saving.After = saving.After.WithWishOf(saving.Before)
		}
		// The cause and the warnings are not stored; with no other difference there is nothing that they would be of.
		saving.Before.Cause, saving.Before.Warnings = saving.After.Cause, saving.After.Warnings
		if reflect.DeepEqual(saving.Before, saving.After) {
			continue
		}
		changed = append(changed, saving)
		if err := rows.add(saving.After); err != nil {
			return err
		}
	}
	if len(changed) == 0 {
		return nil
	}
	var batch pgx.Batch
	rows.update(&batch, !s.Derived)
	if !s.Derived {
		if err := s.tell(ctx, &batch, changed); err != nil {
			return err
		}
	}
	return send(ctx, tx, &batch, "save %d workspaces", len(changed))
}

// send sends a batch, all of whose results are of no interest: one way to the database and back for all its statements.
func send(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, what string, args ...any) error {
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf(what+": %w", append(args, err)...)
	}
	return nil
}
