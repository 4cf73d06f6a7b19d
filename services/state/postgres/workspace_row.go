package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state"
	"lockstep.internal/services/state/actualstate"
)

// workspaceColumns in the order of workspaceRow.
const workspaceColumns = `id, name, project_id, agent_id, user_id, template, namespace, coalesce(idempotency_key, ''), created_at,
	spec, desired_state, desired_revision, desired_state_changed_at,
	actual_state, actual_state_revision, actual_state_changed_at, reason, message,
	applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message, termination, reconsider_at`

func scanWorkspace(row pgx.CollectableRow) (state.Workspace, error) {
	var (
		w                                   state.Workspace
		appliedAt, reconsiderAt             *time.Time
		applyErrorRevision                  *int64
		applyErrorReason, applyErrorMessage *string
	)
	err := row.Scan(&w.ID, &w.Name, &w.ProjectID, &w.AgentID, &w.UserID, &w.Template, &w.Namespace, &w.IdempotencyKey, &w.CreatedAt,
		&w.Spec, &w.DesiredState, &w.DesiredRevision, &w.DesiredStateChangedAt,
		&w.ActualState, &w.ActualStateRevision, &w.ActualStateChangedAt, &w.Reason, &w.Message,
		&w.AppliedRevision, &appliedAt, &applyErrorRevision, &applyErrorReason, &applyErrorMessage, &w.Termination, &reconsiderAt)
	if err != nil {
		return w, err //nolint:wrapcheck // the query's caller says what it asked for
	}
	w.AppliedAt, w.ReconsiderAt = fromNullable(appliedAt), fromNullable(reconsiderAt)
	if applyErrorRevision != nil {
		w.ApplyError = &actualstate.ApplyError{Revision: *applyErrorRevision, Reason: fromNullable(applyErrorReason), Message: fromNullable(applyErrorMessage)}
	}
	for _, t := range []*time.Time{&w.CreatedAt, &w.DesiredStateChangedAt, &w.ActualStateChangedAt, &w.AppliedAt, &w.ReconsiderAt} {
		*t = t.UTC()
	}
	return w, nil
}

// workspaceArgs is what changes after creation, in the order of updateWorkspace's parameters.
type workspaceArgs struct {
	appliedAt, reconsiderAt             *time.Time
	applyErrorRevision                  *int64
	applyErrorReason, applyErrorMessage *string
}

func argsOf(w state.Workspace) workspaceArgs {
	a := workspaceArgs{appliedAt: nullable(w.AppliedAt), reconsiderAt: nullable(w.ReconsiderAt)}
	if w.ApplyError != nil {
		a.applyErrorRevision, a.applyErrorReason, a.applyErrorMessage = &w.ApplyError.Revision, &w.ApplyError.Reason, &w.ApplyError.Message
	}
	return a
}

func nullable[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func fromNullable[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
