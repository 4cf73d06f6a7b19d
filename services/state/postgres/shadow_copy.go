package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
)

// Missing describes the messages that a stream no longer has.
type Missing struct {
	// Before is the storage time of the oldest message that is left; zero if none is missing.
	Before time.Time
	// Restored reports that the stream was restored from an older backup: any message may be missing.
	Restored bool
}

// alike compares two versions of an object, without epoch and data.
const alike = `(l.uid, l.cluster_uid, l.resource_version, l.deleted)
	= (s.uid, s.cluster_uid, s.resource_version, s.deleted)`

func (f Missing) isEmpty() bool { return f.Before.IsZero() && !f.Restored }

// CopyMissing copies rows from the live tables that the streams can no longer produce.
func (s *Shadow) CopyMissing(ctx context.Context, tx pgx.Tx, observed, applied Missing) error {
	if err := s.copyFirstReports(ctx, tx); err != nil {
		return fmt.Errorf("copy the first reports of objects: %w", err)
	}
	if err := s.copyTerminatedOrphans(ctx, tx); err != nil {
		return fmt.Errorf("copy the orphans of terminated workspaces: %w", err)
	}
	if !observed.isEmpty() {
		if err := s.copyObserved(ctx, tx, observed); err != nil {
			return fmt.Errorf("copy rows that are missing in OBSERVED: %w", err)
		}
	}
	if !applied.isEmpty() {
		if err := s.copyApplied(ctx, tx, applied); err != nil {
			return fmt.Errorf("copy rows that are missing in APPLIED: %w", err)
		}
	}
	return nil
}

// copyFirstReports copies the report time and cause from the live row if only these differ. The first event of a
// version may be missing in the stream.
func (s *Shadow) copyFirstReports(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		update `+readmodel.ShadowName("observed_objects")+` s set data = l.data from `+s.LiveName("observed_objects")+` l
		where `+readmodel.SameKey(objectKey())+` and `+alike+`
			and l.data <> s.data and `+withoutReport("l.data")+` = `+withoutReport("s.data"))
	return err //nolint:wrapcheck // CopyMissing wraps it
}

// withoutReport removes the time and cause of the report from an object's data. It works on text, because the
// data may be corrupted.
func withoutReport(data string) string {
	return `replace(regexp_replace(` + data + `,
		'"((observed_at|update_type|resync_id)":"[^"]*"|first_seen":(true|false)),?', '', 'g'), ',}', '}')`
}

// copyTerminatedOrphans copies orphans of terminated workspaces. Whether such a Deployment is an orphan depends on the
// order of two streams, which a replay does not know.
func (s *Shadow) copyTerminatedOrphans(ctx context.Context, tx pgx.Tx) error {
	const ofTerminated = `%[1]s.desired_revision = 0 and exists (
		select from pg_temp.workspaces w
			where w.agent_id = %[1]s.agent_id and w.id::text = %[1]s.workspace and w.actual_state = 'terminated')`
	if _, err := tx.Exec(ctx, fmt.Sprintf(`delete from pg_temp.orphans s where `+ofTerminated, "s")); err != nil {
		return err //nolint:wrapcheck // CopyMissing wraps it
	}
	//nolint:unqueryvet // both tables have the same columns
	_, err := tx.Exec(
		ctx,
		`insert into pg_temp.orphans select l.* from `+s.LiveName(
			"orphans",
		)+` l where `+fmt.Sprintf(
			ofTerminated,
			"l",
		)+` and exists (
		select from pg_temp.observed_objects o
		where (o.agent_id, o.kind, o.namespace, o.name, o.uid) = (l.agent_id, 'deployment', l.namespace, l.name, l.uid)
			and not o.deleted)`,
	)
	return err //nolint:wrapcheck // CopyMissing wraps it
}

//nolint:unqueryvet // both tables have the same columns
func (s *Shadow) copyObserved(ctx context.Context, tx pgx.Tx, f Missing) error {
	return s.copyRows(
		ctx,
		tx,
		f,
		// Agents without a report in the stream.
		`update pg_temp.agents s
			set cluster_uid = l.cluster_uid, epoch = l.epoch, ticked_at = l.ticked_at,
				clock_offset_ms = l.clock_offset_ms, last_seen_at = l.last_seen_at
			from {agents} l, f where l.id = s.id and s.last_seen_at is null and (f.restored or l.last_seen_at < f.before)`,
		// Clocks never go back.
		`update pg_temp.agents s set clock_offset_ms = case when s.ticked_at is null then l.clock_offset_ms
				else s.clock_offset_ms end, ticked_at = l.ticked_at from {agents} l, f
			where l.id = s.id and (s.ticked_at is null or s.ticked_at < l.ticked_at)`,
		// Deleted objects that are newer than the restored stream. This runs before the epoch update, because they
		// may belong to a lost epoch.
		`update pg_temp.observed_objects s set (uid, cluster_uid, epoch, resource_version, workspace_id, data)
				= (l.uid, l.cluster_uid, l.epoch, l.resource_version, l.workspace_id, l.data)
			from {objects} l, f where {same} and f.restored and l.deleted and s.deleted
				and (l.epoch, l.resource_version) > (s.epoch, s.resource_version)`,
		// Epochs that began in missing messages. Only the order of epochs matters. Epochs never decrease.
		`, later as (select l.id, l.epoch - s.epoch as by from {agents} l join pg_temp.agents s using (id)
			where l.epoch > s.epoch),
			objects as (update pg_temp.observed_objects s
				set epoch = coalesce((select l.epoch from {objects} l
					where {same} and {alike} and l.data = s.data), s.epoch + by)
				from later where id = s.agent_id),
			resyncs as (update pg_temp.resyncs s
				set epoch = coalesce((select l.epoch from {resyncs} l
					where (l.agent_id, l.resync_id) = (s.agent_id, s.resync_id)), s.epoch + by)
				from later where id = s.agent_id)
			update pg_temp.agents a set epoch = epoch + by from later where later.id = a.id`,
		// Objects whose newest report is missing in the stream. The version is read from the data, because the
		// row may be corrupted.
		`update pg_temp.observed_objects s set (uid, cluster_uid, resource_version, deleted, workspace_id, data)
				= (l.uid, l.cluster_uid, reported_version, l.deleted or reported_deleted, l.workspace_id, l.data)
			from (
				select *, substring(data from '"resource_version":"([0-9]{1,39})"')::numeric as reported_version,
					data like '%"verb":"deleted"%' as reported_deleted
				from {objects}
			) l, f
			where {same} and l.epoch = s.epoch and (reported_version, reported_deleted) > (s.resource_version, s.deleted)
				and substring(l.data from '"observed_at":"([^"]*)"') < f.stamp`,
		// Objects with a last report in missing messages, and tombstones that the restored stream lacks.
		`insert into pg_temp.observed_objects select l.* from {objects} l, f
			where f.restored and l.deleted or substring(l.data from '"observed_at":"([^"]*)"') < f.stamp on conflict do nothing`,
		`delete from pg_temp.observed_objects s using f
			where f.restored and s.deleted and s.kind <> 'deployment' and not exists (select from {objects} l where {same})`,
		`insert into pg_temp.resyncs select l.* from {resyncs} l, f where f.restored or l.begun_at < f.before
			on conflict do nothing`,
		`insert into pg_temp.orphans select l.* from {orphans} l, f where f.restored or l.seen_at < f.before
			on conflict do nothing`,
	)
}

func (s *Shadow) copyApplied(ctx context.Context, tx pgx.Tx, f Missing) error {
	return s.copyRows(
		ctx,
		tx,
		f,
		// Workspaces without a report in the stream.
		`update pg_temp.workspaces s
			set apply_error_revision = l.apply_error_revision, apply_error_reason = l.apply_error_reason,
				apply_error_message = l.apply_error_message
			from {workspaces} l, f
				where l.id = s.id and s.applied_revision = 0 and s.apply_error_revision is null and s.termination = 'none'
				and (f.restored or l.applied_at < f.before or l.applied_at is null)`,
		// Applies in missing messages.
		`update pg_temp.workspaces s
			set applied_revision = l.applied_revision, applied_at = l.applied_at, applied_uid = l.applied_uid,
				applied_generation = l.applied_generation
			from {workspaces} l, f where l.id = s.id and (f.restored or l.applied_at < f.before)
				and (s.applied_revision < l.applied_revision or s.applied_revision = l.applied_revision
					and s.applied_at < l.applied_at)`,
		// A termination that began in missing messages. It starts after its request and lasts until its end.
		`update pg_temp.workspaces s
			set termination = l.termination, remaining_reason = l.remaining_reason, remaining_message = l.remaining_message
			from {workspaces} l, f
				where l.id = s.id and s.termination = 'none' and l.termination = 'in_progress' and l.desired_state = 'terminated'
				and (f.restored or l.desired_state_since < f.before)`,
	)
}

// copyRows runs the statements with f, the bounds of the missing messages.
func (s *Shadow) copyRows(ctx context.Context, tx pgx.Tx, f Missing, statements ...string) error {
	names := map[string]string{
		"agents":     s.LiveName("agents"),
		"objects":    s.LiveName("observed_objects"),
		"resyncs":    s.LiveName("resyncs"),
		"orphans":    s.LiveName("orphans"),
		"workspaces": s.LiveName("workspaces"),
		"same":       readmodel.SameKey(objectKey()),
		"alike":      alike,
	}
	// Times in object data are compared as text, because the data may be corrupted.
	var stamp *string
	if !f.Before.IsZero() {
		stamp = nullable(f.Before.UTC().Format("2006-01-02T15:04:05"))
	}
	for _, statement := range statements {
		_, err := tx.Exec(
			ctx,
			`with f as (select $1::timestamptz as before, $2::text as stamp, $3::boolean as restored) `+readmodel.Render(
				statement,
				names,
			),
			nullable(f.Before),
			stamp,
			f.Restored,
		)
		if err != nil {
			return err //nolint:wrapcheck // CopyMissing wraps it
		}
	}
	return nil
}

// CopyDue copies the states of workspaces that are due at the agent's next tick. That tick computes them.
func (s *Shadow) CopyDue(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, readmodel.Render(`
		update pg_temp.workspaces s
			set actual_state = l.actual_state, reason = l.reason, message = l.message, reconsider_at = l.reconsider_at
		from {workspaces} l join pg_temp.agents a on a.id = l.agent_id join {agents} c on c.id = l.agent_id
		where l.id = s.id and (l.reconsider_at <= coalesce(a.ticked_at, 'epoch')
			or c.considered_revision <> c.configuration_revision)`,
		map[string]string{"workspaces": s.LiveName("workspaces"), "agents": s.LiveName("agents")}))
	if err != nil {
		return fmt.Errorf("keep the states of workspaces that are due: %w", err)
	}
	return nil
}
