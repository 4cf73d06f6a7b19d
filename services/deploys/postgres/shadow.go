package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
)

// Shadow is a second, temporary set of the tables that the reader writes. A rebuild fills it. It is not safe for
// concurrent use.
type Shadow struct{ *readmodel.ShadowTables }

// rebuiltTables returns the tables in the order of comparison and replacement.
func rebuiltTables() []readmodel.Table {
	return []readmodel.Table{
		{Name: "agents", Key: []string{"agent_id"}},
		{Name: "resyncs", Key: []string{"agent_id", "resync_id"}},
		{Name: "resync_members", Key: []string{"agent_id", "object"}},
		{Name: "workloads", Key: []string{"id"}, Excluded: []string{"told"}},
		{Name: "environments", Key: []string{"id"}, Excluded: []string{"told"}},
		{Name: "facts", Key: []string{"id"}, Excluded: []string{"stream_sequence", "recorded_at"}},
		{Name: "rollouts", Key: []string{"id"}},
	}
}

// NewShadow creates empty shadow tables in the session of a connection.
func NewShadow(ctx context.Context, conn *pgx.Conn) (*Shadow, error) {
	tables, err := readmodel.NewShadowTables(ctx, conn, rebuiltTables(), "")
	if err != nil {
		return nil, err
	}
	if err := tables.AddTable(ctx, "intake", ""); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `insert into `+readmodel.ShadowName("intake")+` default values`); err != nil {
		return nil, fmt.Errorf("create shadow tables: %w", err)
	}
	return &Shadow{tables}, nil
}

// LostMessages describes which messages the stream no longer has.
type LostMessages struct {
	// Beginning: the stream has dropped its first messages.
	Beginning bool
	// Restored: the stream was restored from an older copy at some time and may lack messages.
	Restored bool
}

// Keep copies the rows of the live tables that cannot be derived from the stream any more: the facts and rollouts of
// each workload with facts from before the first complete full resync on the stream, and all rows of the other tables.
// For a restored stream, it copies the facts and rollouts of all workloads.
func (s *Shadow) Keep(ctx context.Context, tx pgx.Tx, lost LostMessages) error {
	if !lost.Beginning && !lost.Restored {
		return nil
	}
	names := map[string]string{
		"workloads": s.LiveName("workloads"), "environments": s.LiveName("environments"), "facts": s.LiveName("facts"),
		"agents": readmodel.ShadowName("agents"),
	}
	since := `(select min(a.complete_at) from {agents} a where a.cluster_uid = k.cluster_uid)`
	if lost.Restored {
		since = `null::timestamptz`
	}
	_, err := tx.Exec(ctx, readmodel.Render(`
		create temporary table kept on commit drop as
		select distinct k.id
		from (select id, cluster_uid from {workloads} union all select id, cluster_uid from {environments}) k
		join {facts} f on f.workload = k.id and f.observed_at <= coalesce(`+since+`, 'infinity')`, names))
	if err != nil {
		return fmt.Errorf("find state of messages that the stream no longer has: %w", err)
	}
	for _, table := range rebuiltTables() {
		names := map[string]string{
			"shadow": readmodel.ShadowName(table.Name), "live": s.LiveName(table.Name), "same": readmodel.SameKey(table.Key),
		}
		replaced := `exists (select from {live} l where {same})`
		copied := `true`
		if table.Name == "facts" || table.Name == "rollouts" {
			replaced, copied = `s.workload in (select id from kept)`, `l.workload in (select id from kept)`
		}
		for _, statement := range []string{
			`delete from {shadow} s where ` + replaced,
			//nolint:unqueryvet // both tables have the same columns
			`insert into {shadow} select l.* from {live} l where ` + copied + ` on conflict do nothing`,
		} {
			if _, err := tx.Exec(ctx, readmodel.Render(statement, names)); err != nil {
				return fmt.Errorf("keep state of table %s: %w", table.Name, err)
			}
		}
	}
	return nil
}

// Replace replaces the live tables. Facts keep their positions on the stream; those of new facts are unknown. It makes
// readers drop their caches.
func (s *Shadow) Replace(ctx context.Context, tx pgx.Tx) error {
	if err := s.ShadowTables.Replace(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `update `+s.LiveName("intake")+` set batches = batches + 2`); err != nil {
		return fmt.Errorf("invalidate the caches of readers: %w", err)
	}
	return nil
}
