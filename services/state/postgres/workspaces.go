package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
)

// WorkspaceChannel is the NOTIFY channel with the id of each inserted or saved workspace.
const WorkspaceChannel = "workspaces"

// Workspaces stores workspaces. Insert and Save are the only writers of the table. Both put the messages of
// the change into the outbox and notify WorkspaceChannel, in the caller's transaction.
//
// A caller locks workspaces before it changes them, in the order of their ids, so that transactions never
// deadlock. Errors for the API's callers are faults.
type Workspaces struct {
	Encoder publish.Encoder
	// RowsOnly stores rows without messages and notifications. A rebuild sets it.
	RowsOnly bool
}

// Insert stores a new workspace and publishes its first desired revision. Fault already_exists: the name is
// in use. Fault not_found: the project, agent or user does not exist.
func (s *Workspaces) Insert(ctx context.Context, tx pgx.Tx, w workspace.Workspace, created []workspace.Event) error {
	a := argsOf(w)
	_, err := tx.Exec(ctx, `
		insert into workspaces (id, name, project_id, agent_id, user_id, template, namespace, idempotency_key, created_at,
			spec, desired_state, desired_revision, desired_state_changed_at,
			actual_state, actual_state_revision, actual_state_changed_at, reason, message,
			applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message, termination, reconsider_at,
			desired_state_since, expiry_warned_of, applied_uid, applied_generation, age_warned_of)
		values ($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
			$23, $24, $25, $26, $27, $28, $29, $30)`,
		w.ID, w.Name, w.ProjectID, w.AgentID, w.UserID, w.Template, w.Namespace, w.IdempotencyKey, w.CreatedAt,
		w.Spec, w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt,
		w.ActualState, w.ActualStateRevision, w.ActualStateChangedAt, w.Reason, w.Message,
		w.AppliedRevision, a.appliedAt, a.applyErrorRevision, a.applyErrorReason, a.applyErrorMessage, w.Termination,
		a.reconsiderAt, w.DesiredStateSince, a.warnedOf, w.AppliedUID, w.AppliedGeneration, a.ageWarnedOf)
	var broken *pgconn.PgError
	switch {
	case err == nil:
	case errors.As(err, &broken) && broken.ConstraintName == "workspaces_name":
		return fault.Wrap(err, errcode.AlreadyExists, "a workspace named %q exists already; choose another name", w.Name)
	case errors.As(err, &broken) && broken.ConstraintName == "workspaces_idempotency_key":
		return fault.Wrap(err, errcode.AlreadyExists, "a workspace with this idempotency key exists already").
			With("idempotency_key", w.IdempotencyKey)
	case errors.As(err, &broken) && broken.Code == foreignKeyViolation:
		return fault.Wrap(err, errcode.NotFound, "project %d, agent %d or user %d of workspace %q does not exist",
			w.ProjectID, w.AgentID, w.UserID, w.Name)
	default:
		return fmt.Errorf("insert workspace %s: %w", w.ID, err)
	}
	var batch pgx.Batch
	batch.Queue(`select pg_notify($1, $2)`, WorkspaceChannel, w.ID.String())
	if err := s.queueMessages(ctx, &batch, workspace.Update{After: w, Events: created}); err != nil {
		return err
	}
	return send(ctx, tx, &batch, "publish workspace %s", w.ID)
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

// Save stores locked workspaces after a change. Each workspace is named once; unchanged ones are skipped.
func (s *Workspaces) Save(ctx context.Context, tx pgx.Tx, updates ...workspace.Update) error {
	var changed []workspace.Update
	var rows workspaceRows
	for _, update := range updates {
		if reflect.DeepEqual(update.Before, update.After) && len(update.Events) == 0 {
			continue
		}
		changed = append(changed, update)
		if err := rows.add(update.After); err != nil {
			return err
		}
	}
	if len(changed) == 0 {
		return nil
	}
	var batch pgx.Batch
	rows.update(&batch, !s.RowsOnly)
	if !s.RowsOnly {
		if err := s.queueMessages(ctx, &batch, changed...); err != nil {
			return err
		}
	}
	return send(ctx, tx, &batch, "save %d workspaces", len(changed))
}

// queueMessages adds the statements that put the messages of the updates into the outbox.
func (s *Workspaces) queueMessages(ctx context.Context, batch *pgx.Batch, updates ...workspace.Update) error {
	var messages []*nats.Msg
	for _, update := range updates {
		more, err := s.Encoder.Workspace(ctx, update)
		if err != nil {
			return err
		}
		messages = append(messages, more...)
	}
	if err := outbox.Queue(batch, messages...); err != nil {
		return fmt.Errorf("queue the messages of %d workspaces: %w", len(updates), err)
	}
	return nil
}

// republishChunk bounds the rendered manifests in memory.
const republishChunk = 100

// RepublishAll publishes the desired state of every workspace again: DESIRED or the database was restored
// from an older backup. Workspaces that terminated more than 30 days ago are left out.
func (s *Workspaces) RepublishAll(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select `+workspaceColumns+` from workspaces where actual_state <> 'terminated' or actual_state_changed_at > now() - interval '30 days'
		order by id for no key update`)
	if err != nil {
		return fmt.Errorf("lock all workspaces: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanWorkspace)
	if err != nil {
		return fmt.Errorf("lock all workspaces: %w", err)
	}
	for len(found) > 0 {
		n := min(republishChunk, len(found))
		messages := make([]*nats.Msg, n)
		for i, w := range found[:n] {
			if messages[i], err = s.Encoder.Desired(ctx, w); err != nil {
				return err
			}
		}
		if err := insertMessages(ctx, tx, messages); err != nil {
			return err
		}
		found = found[n:]
	}
	return nil
}

// insertMessages puts messages into the outbox, in the transaction of the change that they report.
func insertMessages(ctx context.Context, tx pgx.Tx, messages []*nats.Msg) error {
	if len(messages) == 0 {
		return nil
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("put %d messages into the outbox: %w", len(messages), err)
	}
	return nil
}

// send sends the statements of a batch in one round trip.
func send(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, what string, args ...any) error {
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf(what+": %w", append(args, err)...)
	}
	return nil
}
