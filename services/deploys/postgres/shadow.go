package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
)

// Shadow is a second, temporary set of the tables that the reader writes, in one session: there, their names mean the shadows, so that the code that keeps the real
// ones fills these. They end with the session. Its transactions are read only, which lets temporary tables be written and nothing else.
//
// It belongs to one goroutine.
type Shadow struct {
	conn *pgx.Conn
	// schema has the real tables.
	schema string
}

// rebuilt is a table that is derived from the stream.
type rebuilt struct {
	name string
	key  []string
	// own are columns that are not derived.
	own []string
}

// rebuiltTables are in the order in which they are compared and replaced.
func rebuiltTables() []rebuilt {
	return []rebuilt{
		{name: "agents", key: []string{"agent_id"}},
		{name: "resyncs", key: []string{"agent_id", "resync_id"}},
		{name: "resync_members", key: []string{"agent_id", "object"}},
		{name: "workloads", key: []string{"id"}, own: []string{"told"}},
		{name: "environments", key: []string{"id"}, own: []string{"told"}},
		{name: "facts", key: []string{"id"}, own: []string{"stream_sequence", "recorded_at"}},
		{name: "rollouts", key: []string{"id"}},
	}
}

// NewShadow makes the shadows on a connection, empty.
func NewShadow(ctx context.Context, conn *pgx.Conn) (*Shadow, error) {
	s := &Shadow{conn: conn}
	if err := conn.QueryRow(ctx, `select current_schema()`).Scan(&s.schema); err != nil {
		return nil, fmt.Errorf("make shadow tables: %w", err)
	}
	// The buffers of temporary tables are the session's own, small by default, and can be set until the first is used.
	statements := []string{`set temp_buffers = '64MB'`}
	for _, table := range append(rebuiltTables(), rebuilt{name: "intake"}) {
		statements = append(statements, fmt.Sprintf(`create temporary table %s (like %s including all)`, table.name, s.real(table.name)))
	}
	statements = append(statements, `insert into `+shadow("intake")+` default values`)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, fmt.Errorf("make shadow tables: %w", err)
		}
	}
	return s, nil
}

// real is the name of a real table.
func (s *Shadow) real(table string) string { return pgx.Identifier{s.schema, table}.Sanitize() }

// shadow is the name of its shadow.
func shadow(table string) string { return pgx.Identifier{"pg_temp", table}.Sanitize() }

// Begin begins a transaction that can write the shadows alone.
func (s *Shadow) Begin(ctx context.Context) (pgx.Tx, error) { return beginReadOnly(ctx, s.conn) }

// Within gives savepoints of a transaction of the session, in which the shadows alone can be written.
func (s *Shadow) Within(tx pgx.Tx) postgres.Beginner { return within{tx} }

type within struct{ tx pgx.Tx }

func (w within) Begin(ctx context.Context) (pgx.Tx, error) { return beginReadOnly(ctx, w.tx) }

func beginReadOnly(ctx context.Context, db postgres.Beginner) (pgx.Tx, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `set transaction read only`); err != nil {
		_ = tx.Rollback(ctx)
		return nil, fmt.Errorf("protect the real tables: %w", err)
	}
	return tx, nil
}

// Tidy does what autovacuum does not for temporary tables. It is called outside of a transaction.
func (s *Shadow) Tidy(ctx context.Context) error {
	for _, table := range rebuiltTables() {
		if _, err := s.conn.Exec(ctx, `vacuum analyze `+shadow(table.name)); err != nil {
			return fmt.Errorf("tidy the shadow of %s: %w", table.name, err)
		}
	}
	return nil
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
	names := map[string]string{"workloads": s.real("workloads"), "environments": s.real("environments"), "facts": s.real("facts"), "agents": shadow("agents")}
	since := `(select min(a.complete_at) from {agents} a where a.cluster_uid = k.cluster_uid)`
	if forgotten.Restored {
		since = `null::timestamptz`
	}
	_, err := tx.Exec(ctx, fill(`
		create temporary table kept on commit drop as
		select distinct k.id from (select id, cluster_uid from {workloads} union all select id, cluster_uid from {environments}) k
		join {facts} f on f.workload = k.id and f.observed_at <= coalesce(`+since+`, 'infinity')`, names))
	if err != nil {
		return fmt.Errorf("find what the stream has forgotten: %w", err)
	}
	for _, table := range rebuiltTables() {
		names := map[string]string{"shadow": shadow(table.name), "real": s.real(table.name), "same": same(table.key)}
		which := `exists (select from {real} l where {same})`
		from := `true`
		if table.name == "facts" || table.name == "rollouts" {
			which, from = `s.workload in (select id from kept)`, `l.workload in (select id from kept)`
		}
		for _, statement := range []string{
			`delete from {shadow} s where ` + which,
			//nolint:unqueryvet // the shadow was made like it: the columns are the same, whichever there are
			`insert into {shadow} select l.* from {real} l where ` + from + ` on conflict do nothing`,
		} {
			if _, err := tx.Exec(ctx, fill(statement, names)); err != nil {
				return fmt.Errorf("keep what the stream has forgotten of %s: %w", table.name, err)
			}
		}
	}
	return nil
}

// derived are the columns of a table that are derived and not its key.
func (s *Shadow) derived(ctx context.Context, tx pgx.Tx, table rebuilt) ([]string, error) {
	rows, err := tx.Query(ctx, `
		select column_name from information_schema.columns where table_schema = $1 and table_name = $2 and column_name <> all($3) order by ordinal_position`,
		s.schema, table.name, append(append([]string{}, table.key...), table.own...))
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table.name, err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table.name, err)
	}
	return columns, nil
}

// Replace makes the real tables what their shadows are, row by row where they differ. Positions on the stream stay; those of facts that are new are not known.
// Readers notice, and forget what they remember.
func (s *Shadow) Replace(ctx context.Context, tx pgx.Tx) error {
	for _, table := range rebuiltTables() {
		derived, err := s.derived(ctx, tx, table)
		if err != nil {
			return err
		}
		names := map[string]string{"shadow": shadow(table.name), "real": s.real(table.name), "same": same(table.key)}
		statements := []string{
			`delete from {real} l where not exists (select from {shadow} s where {same})`,

			`insert into {real} select s.* from {shadow} s where not exists (select from {real} l where {same})`,
		}
		if len(derived) > 0 {
			names["distinct"] = distinct(derived)
			names["derived"] = each(derived, ", ", func(c string) string { return c + " = s." + c })
			statements = append([]string{`update {real} l set {derived} from {shadow} s where {same} and {distinct}`}, statements...)
		}
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, fill(statement, names)); err != nil {
				return fmt.Errorf("put the rebuilt %s in place: %w", table.name, err)
			}
		}
	}
	if _, err := tx.Exec(ctx, `update `+s.real("intake")+` set batches = batches + 2`); err != nil {
		return fmt.Errorf("tell readers of the rebuilt tables: %w", err)
	}
	return nil
}

// fill puts names into the places of a statement in braces.
func fill(statement string, names map[string]string) string {
	pairs := make([]string, 0, 2*len(names))
	for name, value := range names {
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...).Replace(statement)
}

func each(columns []string, joined string, one func(column string) string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = one(c)
	}
	return strings.Join(parts, joined)
}

// same is that a real row l and a row s of its shadow have the same key.
func same(key []string) string {
	return each(key, " and ", func(c string) string { return "l." + c + " = s." + c })
}

// distinct is that any of the columns of l and s differ.
func distinct(columns []string) string {
	of := func(row string) string {
		return "row(" + each(columns, ", ", func(c string) string { return row + "." + c }) + ")"
	}
	return of("l") + " is distinct from " + of("s")
}
