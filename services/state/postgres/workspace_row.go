package postgres

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

// workspaceColumns in the order of scanWorkspace.
const workspaceColumns = `id, name, project_id, agent_id, user_id, template, namespace, coalesce(idempotency_key, ''),
	created_at, spec, desired_state, desired_revision, desired_state_changed_at,
	actual_state, actual_state_revision, actual_state_changed_at, reason, message,
	applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message,
	termination, reconsider_at, desired_state_since, expiry_warned_of, applied_uid, applied_generation, age_warned_of,
	remaining_reason, remaining_message, shares, idle_warned_of, extended_until,
	last_activity_at, coalesce(last_activity_user_id, 0),
	case when last_activity_user_id is null then coalesce(last_activity_program, '') else '' end, counts_processes`

func scanWorkspace(row pgx.CollectableRow) (workspace.Workspace, error) {
	var (
		w                                           workspace.Workspace
		appliedAt, recomputeAt, warnedStateDeadline *time.Time
		warnedAgeDeadline, warnedIdleDeadline       *time.Time
		extendedUntil, lastActivityAt               *time.Time
		applyErrorRevision                          *int64
		applyErrorReason, applyErrorMessage         *string
	)
	err := row.Scan(
		&w.ID,
		&w.Name,
		&w.ProjectID,
		&w.AgentID,
		&w.UserID,
		&w.Template,
		&w.Namespace,
		&w.IdempotencyKey,
		&w.CreatedAt,
		&w.Spec,
		&w.DesiredState,
		&w.DesiredRevision,
		&w.DesiredStateChangedAt,
		&w.ActualState,
		&w.ActualStateRevision,
		&w.ActualStateChangedAt,
		&w.Reason,
		&w.Message,
		&w.AppliedRevision,
		&appliedAt,
		&applyErrorRevision,
		&applyErrorReason,
		&applyErrorMessage,
		&w.Termination,
		&recomputeAt,
		&w.DesiredStateSince,
		&warnedStateDeadline,
		&w.AppliedUID,
		&w.AppliedGeneration,
		&warnedAgeDeadline,
		&w.RemainingReason,
		&w.RemainingMessage,
		&w.Shares,
		&warnedIdleDeadline,
		&extendedUntil,
		&lastActivityAt,
		&w.LastActivity.UserID,
		&w.LastActivity.Program,
		&w.CountsProcesses,
	)
	if err != nil {
		return w, err //nolint:wrapcheck // the caller wraps it
	}
	if len(w.Shares) == 0 {
		w.Shares = nil
	}
	w.AppliedAt, w.RecomputeAt = fromNullable(appliedAt), fromNullable(recomputeAt)
	w.WarnedStateDeadline, w.WarnedAgeDeadline = fromNullable(warnedStateDeadline), fromNullable(warnedAgeDeadline)
	w.WarnedIdleDeadline, w.ExtendedUntil = fromNullable(warnedIdleDeadline), fromNullable(extendedUntil)
	w.LastActivity.At = fromNullable(lastActivityAt)
	if applyErrorRevision != nil {
		w.ApplyError = &actualstate.ApplyError{
			Revision: *applyErrorRevision,
			Reason:   fromNullable(applyErrorReason),
			Message:  fromNullable(applyErrorMessage),
		}
	}
	for _, t := range []*time.Time{
		&w.CreatedAt, &w.DesiredStateChangedAt, &w.ActualStateChangedAt, &w.AppliedAt,
		&w.RecomputeAt, &w.DesiredStateSince, &w.WarnedStateDeadline, &w.WarnedAgeDeadline,
		&w.WarnedIdleDeadline, &w.ExtendedUntil, &w.LastActivity.At,
	} {
		*t = t.UTC()
	}
	return w, nil
}

// workspaceArgs are the nullable columns.
type workspaceArgs struct {
	appliedAt, recomputeAt, warnedStateDeadline *time.Time
	warnedAgeDeadline, warnedIdleDeadline       *time.Time
	extendedUntil                               *time.Time
	applyErrorRevision                          *int64
	applyErrorReason, applyErrorMessage         *string
}

func argsOf(w workspace.Workspace) workspaceArgs {
	a := workspaceArgs{
		appliedAt:           nullable(w.AppliedAt),
		recomputeAt:         nullable(w.RecomputeAt),
		warnedStateDeadline: nullable(w.WarnedStateDeadline),
		warnedAgeDeadline:   nullable(w.WarnedAgeDeadline),
		warnedIdleDeadline:  nullable(w.WarnedIdleDeadline),
		extendedUntil:       nullable(w.ExtendedUntil),
	}
	if w.ApplyError != nil {
		a.applyErrorRevision = &w.ApplyError.Revision
		a.applyErrorReason, a.applyErrorMessage = &w.ApplyError.Reason, &w.ApplyError.Message
	}
	return a
}

// workspaceRows are the mutable columns of many workspaces, one array each.
type workspaceRows struct {
	ids                   []uuid.UUID
	specs                 []string
	desiredStates         []string
	desiredRevisions      []int64
	desiredStateChangedAt []time.Time
	actualStates          []string
	actualStateRevisions  []int64
	actualStateChangedAt  []time.Time
	reasons, messages     []string
	appliedRevisions      []int64
	appliedAt             []*time.Time
	applyErrorRevisions   []*int64
	applyErrorReasons     []*string
	applyErrorMessages    []*string
	terminations          []string
	recomputeAt           []*time.Time
	desiredStateSince     []time.Time
	warnedStateDeadline   []*time.Time
	appliedUIDs           []string
	appliedGenerations    []int64
	warnedAgeDeadline     []*time.Time
	remainingReasons      []string
	remainingMessages     []string
	warnedIdleDeadline    []*time.Time
	extendedUntil         []*time.Time
	countsProcesses       []bool
}

func (r *workspaceRows) add(w workspace.Workspace) error {
	spec, err := json.Marshal(w.Spec)
	if err != nil {
		return fmt.Errorf("marshal the spec of workspace %s: %w", w.ID, err)
	}
	a := argsOf(w)
	r.ids = append(r.ids, w.ID)
	r.specs = append(r.specs, string(spec))
	r.desiredStates = append(r.desiredStates, string(w.DesiredState))
	r.desiredRevisions = append(r.desiredRevisions, w.DesiredRevision)
	r.desiredStateChangedAt = append(r.desiredStateChangedAt, w.DesiredStateChangedAt)
	r.actualStates = append(r.actualStates, string(w.ActualState))
	r.actualStateRevisions = append(r.actualStateRevisions, w.ActualStateRevision)
	r.actualStateChangedAt = append(r.actualStateChangedAt, w.ActualStateChangedAt)
	r.reasons = append(r.reasons, w.Reason)
	r.messages = append(r.messages, w.Message)
	r.appliedRevisions = append(r.appliedRevisions, w.AppliedRevision)
	r.appliedAt = append(r.appliedAt, a.appliedAt)
	r.applyErrorRevisions = append(r.applyErrorRevisions, a.applyErrorRevision)
	r.applyErrorReasons = append(r.applyErrorReasons, a.applyErrorReason)
	r.applyErrorMessages = append(r.applyErrorMessages, a.applyErrorMessage)
	r.terminations = append(r.terminations, string(w.Termination))
	r.recomputeAt = append(r.recomputeAt, a.recomputeAt)
	r.desiredStateSince = append(r.desiredStateSince, w.DesiredStateSince)
	r.warnedStateDeadline = append(r.warnedStateDeadline, a.warnedStateDeadline)
	r.appliedUIDs = append(r.appliedUIDs, w.AppliedUID)
	r.appliedGenerations = append(r.appliedGenerations, w.AppliedGeneration)
	r.warnedAgeDeadline = append(r.warnedAgeDeadline, a.warnedAgeDeadline)
	r.remainingReasons = append(r.remainingReasons, w.RemainingReason)
	r.remainingMessages = append(r.remainingMessages, w.RemainingMessage)
	r.warnedIdleDeadline = append(r.warnedIdleDeadline, a.warnedIdleDeadline)
	r.extendedUntil = append(r.extendedUntil, a.extendedUntil)
	r.countsProcesses = append(r.countsProcesses, w.CountsProcesses)
	return nil
}

// maxSingleUpdates: up to this number of workspaces, single UPDATE statements are faster than one with arrays.
const maxSingleUpdates = 4

// update adds the statements that write the rows. returning is appended to each statement.
func (r *workspaceRows) update(batch *pgx.Batch, returning string) {
	if len(r.ids) > maxSingleUpdates {
		batch.Queue(
			`
			update workspaces w set spec = n.spec::jsonb, desired_state = n.desired_state, desired_revision = n.desired_revision,
				rendered_revision = case when n.desired_revision > w.desired_revision then n.desired_revision
					else w.rendered_revision end,
				desired_state_changed_at = n.desired_state_changed_at,
				actual_state = n.actual_state, actual_state_revision = n.actual_state_revision,
				actual_state_changed_at = n.actual_state_changed_at, reason = n.reason, message = n.message,
				applied_revision = n.applied_revision, applied_at = n.applied_at,
				apply_error_revision = n.apply_error_revision,
				apply_error_reason = n.apply_error_reason, apply_error_message = n.apply_error_message,
				termination = n.termination, reconsider_at = n.reconsider_at,
				desired_state_since = n.desired_state_since, expiry_warned_of = n.expiry_warned_of,
				applied_uid = n.applied_uid, applied_generation = n.applied_generation, age_warned_of = n.age_warned_of,
				remaining_reason = n.remaining_reason, remaining_message = n.remaining_message,
				idle_warned_of = n.idle_warned_of, extended_until = n.extended_until,
				counts_processes = n.counts_processes
			from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::timestamptz[], $6::text[], $7::bigint[],
				$8::timestamptz[], $9::text[], $10::text[], $11::bigint[], $12::timestamptz[],
				$13::bigint[], $14::text[], $15::text[], $16::text[], $17::timestamptz[],
				$18::timestamptz[], $19::timestamptz[], $20::text[], $21::bigint[], $22::timestamptz[],
				$23::text[], $24::text[], $25::timestamptz[], $26::timestamptz[], $27::boolean[])
				as n (id, spec, desired_state, desired_revision, desired_state_changed_at,
					actual_state, actual_state_revision, actual_state_changed_at, reason, message,
					applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message,
					termination, reconsider_at, desired_state_since,
					expiry_warned_of, applied_uid, applied_generation, age_warned_of,
					remaining_reason, remaining_message, idle_warned_of, extended_until, counts_processes)
			where w.id = n.id`+returning,
			r.ids,
			r.specs,
			r.desiredStates,
			r.desiredRevisions,
			r.desiredStateChangedAt,
			r.actualStates,
			r.actualStateRevisions,
			r.actualStateChangedAt,
			r.reasons,
			r.messages,
			r.appliedRevisions,
			r.appliedAt,
			r.applyErrorRevisions,
			r.applyErrorReasons,
			r.applyErrorMessages,
			r.terminations,
			r.recomputeAt,
			r.desiredStateSince,
			r.warnedStateDeadline,
			r.appliedUIDs,
			r.appliedGenerations,
			r.warnedAgeDeadline,
			r.remainingReasons,
			r.remainingMessages,
			r.warnedIdleDeadline,
			r.extendedUntil,
			r.countsProcesses,
		)
		return
	}
	for i := range r.ids {
		batch.Queue(
			`
			update workspaces w set spec = $2, desired_state = $3, desired_revision = $4, desired_state_changed_at = $5,
				rendered_revision = case when $4 > w.desired_revision then $4 else w.rendered_revision end,
				actual_state = $6, actual_state_revision = $7, actual_state_changed_at = $8, reason = $9, message = $10,
				applied_revision = $11, applied_at = $12,
				apply_error_revision = $13, apply_error_reason = $14, apply_error_message = $15,
				termination = $16, reconsider_at = $17, desired_state_since = $18,
				expiry_warned_of = $19, applied_uid = $20, applied_generation = $21, age_warned_of = $22,
				remaining_reason = $23, remaining_message = $24, idle_warned_of = $25, extended_until = $26,
				counts_processes = $27
			where w.id = $1`+returning,
			r.ids[i],
			r.specs[i],
			r.desiredStates[i],
			r.desiredRevisions[i],
			r.desiredStateChangedAt[i],
			r.actualStates[i],
			r.actualStateRevisions[i],
			r.actualStateChangedAt[i],
			r.reasons[i],
			r.messages[i],
			r.appliedRevisions[i],
			r.appliedAt[i],
			r.applyErrorRevisions[i],
			r.applyErrorReasons[i],
			r.applyErrorMessages[i],
			r.terminations[i],
			r.recomputeAt[i],
			r.desiredStateSince[i],
			r.warnedStateDeadline[i],
			r.appliedUIDs[i],
			r.appliedGenerations[i],
			r.warnedAgeDeadline[i],
			r.remainingReasons[i],
			r.remainingMessages[i],
			r.warnedIdleDeadline[i],
			r.extendedUntil[i],
			r.countsProcesses[i],
		)
	}
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
