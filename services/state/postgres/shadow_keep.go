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
const alike = `(l.uid, l.cluster_uid, l.resource_version, l.deleted) = (s.uid, s.cluster_uid, s.resource_version, s.deleted)`

func (f Missing) none() bool { return f.Before.IsZero() && !f.Restored }

// KeepMissing copies from the live tables what the streams no longer have.
func (s *Shadow) KeepMissing(ctx context.Context, tx pgx.Tx, observed, applied Missing) error {
	if err := s.keepFirstReports(ctx, tx); err != nil {
		return fmt.Errorf("keep the first reports of objects: %w", err)
	}
	if err := s.keepRevived(ctx, tx); err != nil {
		return fmt.Errorf("keep the orphans of terminated workspaces: %w", err)
	}
	if !observed.none() {
		if err := s.keepObserved(ctx, tx, observed); err != nil {
			return fmt.Errorf("keep what OBSERVED no longer has: %w", err)
		}
	}
	if !applied.none() {
		if err := s.keepApplied(ctx, tx, applied); err != nil {
			return fmt.Errorf("keep what APPLIED no longer has: %w", err)
		}
	}
	return nil
}

// keepFirstReports ignores differences in the time and cause of the first report of a version: the stream may
// no longer have that report.
func (s *Shadow) keepFirstReports(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		update `+readmodel.ShadowName("observed_objects")+` s set data = l.data from `+s.LiveName("observed_objects")+` l
		where `+readmodel.SameKey(objectKey())+` and `+alike+`
			and l.data <> s.data and `+withoutReport("l.data")+` = `+withoutReport("s.data"))
	return err //nolint:wrapcheck // KeepMissing wraps it
}

// withoutReport removes the time and cause of the report from an object's data. It works on text, because the
// data may be corrupted.
func withoutReport(data string) string {
	return `replace(regexp_replace(` + data + `, '"((observed_at|update_type|resync_id)":"[^"]*"|first_seen":(true|false)),?', '', 'g'), ',}', '}')`
}

// keepRevived copies orphans of terminated workspaces. A resync after the termination makes them orphans, and
// the termination is on another stream: the replay cannot tell the order.
func (s *Shadow) keepRevived(ctx context.Context, tx pgx.Tx) error {
	const ofTerminated = `%[1]s.desired_revision = 0 and exists (
		select from pg_temp.workspaces w where w.agent_id = %[1]s.agent_id and w.id::text = %[1]s.workspace and w.actual_state = 'terminated')`
	if _, err := tx.Exec(ctx, fmt.Sprintf(`delete from pg_temp.orphans s where `+ofTerminated, "s")); err != nil {
		return err //nolint:wrapcheck // KeepMissing wraps it
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
		where (o.agent_id, o.kind, o.namespace, o.name, o.uid) = (l.agent_id, 'deployment', l.namespace, l.name, l.uid) and not o.deleted)`,
	)
	return err //nolint:wrapcheck // KeepMissing wraps it
}

//nolint:unqueryvet // both tables have the same columns
func (s *Shadow) keepObserved(ctx context.Context, tx pgx.Tx, f Missing) error {
	return s.keep(
		ctx,
		tx,
		f,
		// Agents without a report in the stream.
		`update pg_temp.agents s set cluster_uid = l.cluster_uid, epoch = l.epoch, ticked_at = l.ticked_at, last_seen_at = l.last_seen_at
			from {agents} l, f where l.id = s.id and s.last_seen_at is null and (f.restored or l.last_seen_at < f.before)`,
		// Clocks never go back.
		`update pg_temp.agents s set ticked_at = l.ticked_at from {agents} l, f where l.id = s.id and (s.ticked_at is null or s.ticked_at < l.ticked_at)`,
		// Tombstones that are newer than the restored stream. Before the epochs: a lost epoch may own them.
		`update pg_temp.observed_objects s set (uid, cluster_uid, epoch, resource_version, workspace_id, resync_id, data)
				= (l.uid, l.cluster_uid, l.epoch, l.resource_version, l.workspace_id, l.resync_id, l.data)
			from {objects} l, f where {same} and f.restored and l.deleted and s.deleted and (l.epoch, l.resource_version) > (s.epoch, s.resource_version)`,
		// Epochs that began in the missing part. Only their order counts, and they never go back.
		`, later as (select l.id, l.epoch - s.epoch as by from {agents} l join pg_temp.agents s using (id) where l.epoch > s.epoch),
			objects as (update pg_temp.observed_objects s set epoch = coalesce((select l.epoch from {objects} l where {same} and {alike} and l.data = s.data), s.epoch + by)
				from later where id = s.agent_id),
			resyncs as (update pg_temp.resyncs s set epoch = coalesce((select l.epoch from {resyncs} l where (l.agent_id, l.resync_id) = (s.agent_id, s.resync_id)), s.epoch + by)
				from later where id = s.agent_id)
			update pg_temp.agents a set epoch = epoch + by from later where later.id = a.id`,
		// Objects with only older, late reports in the stream. The version is read from the data, because the
		// row may be corrupted.
		`update pg_temp.observed_objects s set (uid, cluster_uid, resource_version, deleted, workspace_id, data)
				= (l.uid, l.cluster_uid, told, l.deleted or gone, l.workspace_id, l.data)
			from (select *, substring(data from '"resource_version":"([0-9]{1,39})"')::numeric as told, data like '%"verb":"deleted"%' as gone from {objects}) l, f
			where {same} and l.epoch = s.epoch and (told, gone) > (s.resource_version, s.deleted) and substring(l.data from '"observed_at":"([^"]*)"') < f.stamp`,
		// Membership in resyncs that the stream no longer has.
		`update pg_temp.observed_objects s set resync_id = l.resync_id from {objects} l
			where {same} and s.resync_id is null and not exists (select from pg_temp.resyncs r where (r.agent_id, r.resync_id) = (l.agent_id, l.resync_id))`,
		// Objects with a last report in the missing part, and tombstones that the restored stream lacks.
		`insert into pg_temp.observed_objects select l.* from {objects} l, f
			where f.restored and l.deleted or substring(l.data from '"observed_at":"([^"]*)"') < f.stamp on conflict do nothing`,
		`delete from pg_temp.observed_objects s using f where f.restored and s.deleted and s.kind <> 'deployment' and not exists (select from {objects} l where {same})`,
		`insert into pg_temp.resyncs select l.* from {resyncs} l, f where f.restored or l.begun_at < f.before on conflict do nothing`,
		`insert into pg_temp.orphans select l.* from {orphans} l, f where f.restored or l.seen_at < f.before on conflict do nothing`,
	)
}

func (s *Shadow) keepApplied(ctx context.Context, tx pgx.Tx, f Missing) error {
	return s.keep(
		ctx,
		tx,
		f,
		// Workspaces without a report in the stream.
		`update pg_temp.workspaces s set apply_error_revision = l.apply_error_revision, apply_error_reason = l.apply_error_reason,
				apply_error_message = l.apply_error_message
			from {workspaces} l, f where l.id = s.id and s.applied_revision = 0 and s.apply_error_revision is null and s.termination = 'none'
				and (f.restored or l.applied_at < f.before or l.applied_at is null)`,
		// Applies in the missing part.
		`update pg_temp.workspaces s set applied_revision = l.applied_revision, applied_at = l.applied_at, applied_uid = l.applied_uid, applied_generation = l.applied_generation
			from {workspaces} l, f where l.id = s.id and (f.restored or l.applied_at < f.before)
				and (s.applied_revision < l.applied_revision or s.applied_revision = l.applied_revision and s.applied_at < l.applied_at)`,
		// A termination that began in the missing part. It starts after its request and lasts until its end.
		`update pg_temp.workspaces s set termination = l.termination
			from {workspaces} l, f where l.id = s.id and s.termination = 'none' and l.termination = 'in_progress' and l.desired_state = 'terminated'
				and (f.restored or l.desired_state_since < f.before)`,
	)
}

// keep runs statements on f, the missing part.
func (s *Shadow) keep(ctx context.Context, tx pgx.Tx, f Missing, statements ...string) error {
	names := map[string]string{
		"agents": s.LiveName(
			"agents",
		),
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
			return err //nolint:wrapcheck // KeepMissing wraps it
		}
	}
	return nil
}

// KeepDue copies the states of workspaces that are due at the agent's next tick. That tick computes them.
func (s *Shadow) KeepDue(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, readmodel.Render(`
		update pg_temp.workspaces s set actual_state = l.actual_state, reason = l.reason, message = l.message, reconsider_at = l.reconsider_at
		from {workspaces} l join pg_temp.agents a on a.id = l.agent_id join {agents} c on c.id = l.agent_id
		where l.id = s.id and (l.reconsider_at <= coalesce(a.ticked_at, 'epoch') or c.considered_revision <> c.configuration_revision)`,
		map[string]string{"workspaces": s.LiveName("workspaces"), "agents": s.LiveName("agents")}))
	if err != nil {
		return fmt.Errorf("keep the states of workspaces that are due: %w", err)
	}
	return nil
}
