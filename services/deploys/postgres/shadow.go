package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
)

// Shadow is a second, temporary set of the tables that the reader writes.
//
// It belongs to one goroutine.
type Shadow struct{ *readmodel.ShadowTables }

// RebuiltTable is how a table compares with its shadow.
type RebuiltTable = readmodel.TableComparison

// rebuiltTables are in the order in which they are compared and replaced.
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

// NewShadow makes the shadows on a connection, empty.
func NewShadow(ctx context.Context, conn *pgx.Conn) (*Shadow, error) {
	tables, err := readmodel.NewShadowTables(ctx, conn, rebuiltTables(), "")
	if err != nil {
		return nil, err
	}
	if err := tables.AddTable(ctx, "intake", ""); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `insert into `+readmodel.ShadowName("intake")+` default values`); err != nil {
		return nil, fmt.Errorf("make shadow tables: %w", err)
	}
	return &Shadow{tables}, nil
}

// Forgotten says what the stream does not tell any more.
type Forgotten struct {
	// Beginning is that the stream has dropped its first messages.
	Beginning bool
	// Restored is that it was restored from an older copy at some time, and may lack messages from its midst.
	Restored bool
}

// Keep brings over, from the real tables, what the stream cannot tell any more: how things stood before its first full resync that came in whole. What was
// concluded of a workload by then stays, and whatever followed from it; where the stream was restored, all that is there stays, and only what is
// missing is made anew.
func (s *Shadow) Keep(ctx context.Context, tx pgx.Tx, forgotten Forgotten) error {
	if !forgotten.Beginning && !forgotten.Restored {
		return nil
	}
	names := map[string]string{"workloads": s.LiveName("workloads"), "environments": s.LiveName("environments"), "facts": s.LiveName("facts"), "agents": readmodel.ShadowName("agents")}
	since := `(select min(a.complete_at) from {agents} a where a.cluster_uid = k.cluster_uid)`
	if forgotten.Restored {
		since = `null::timestamptz`
	}
	_, err := tx.Exec(ctx, readmodel.Render(`
		create temporary table kept on commit drop as
		select distinct k.id from (select id, cluster_uid from {workloads} union all select id, cluster_uid from {environments}) k
		join {facts} f on f.workload = k.id and f.observed_at <= coalesce(`+since+`, 'infinity')`, names))
	if err != nil {
		return fmt.Errorf("find what the stream has forgotten: %w", err)
	}
	for _, table := range rebuiltTables() {
		names := map[string]string{"shadow": readmodel.ShadowName(table.Name), "real": s.LiveName(table.Name), "same": readmodel.SameKey(table.Key)}
		which := `exists (select from {real} l where {same})`
		from := `true`
		if table.Name == "facts" || table.Name == "rollouts" {
			which, from = `s.workload in (select id from kept)`, `l.workload in (select id from kept)`
		}
		for _, statement := range []string{
			`delete from {shadow} s where ` + which,
			//nolint:unqueryvet // the shadow was made like it: the columns are the same, whichever there are
			`insert into {shadow} select l.* from {real} l where ` + from + ` on conflict do nothing`,
		} {
			if _, err := tx.Exec(ctx, readmodel.Render(statement, names)); err != nil {
				return fmt.Errorf("keep what the stream has forgotten of %s: %w", table.Name, err)
			}
		}
	}
	return nil
}

// Replace makes the real tables what their shadows are. Positions on the stream stay; those of facts that are new are not known. Readers notice, and forget what they
// remember.
func (s *Shadow) Replace(ctx context.Context, tx pgx.Tx) error {
	if err := s.ShadowTables.Replace(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `update `+s.LiveName("intake")+` set batches = batches + 2`); err != nil {
		return fmt.Errorf("tell readers of the rebuilt tables: %w", err)
	}
	return nil
}
