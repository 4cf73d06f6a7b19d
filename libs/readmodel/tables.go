package readmodel

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
)

// Table says what of a table is derived from streams.
type Table struct {
	Name string
	Key  []string
	// Derived columns. Without any, all are but the key and Own.
	Derived []string
	// Excluded are columns that are neither compared nor replaced. They mean nothing beside Derived.
	Excluded []string
	// UserRows is that its rows are not derived: people make them.
	UserRows bool
}

// ShadowTables are the shadows of one session.
type ShadowTables struct {
	conn *pgx.Conn
	// schema has the real tables.
	schema string
	tables []Table
}

// NewShadowTables makes the shadows on a connection, empty. With are the storage parameters of their tables, such as "fillfactor = 60"; it may be empty.
func NewShadowTables(ctx context.Context, conn *pgx.Conn, tables []Table, with string) (*ShadowTables, error) {
	t := &ShadowTables{conn: conn}
	if err := conn.QueryRow(ctx, `select current_schema()`).Scan(&t.schema); err != nil {
		return nil, fmt.Errorf("make shadow tables: %w", err)
	}
	// The buffers of temporary tables are the session's own, small by default, and can be set until the first is used.
	if _, err := conn.Exec(ctx, `set temp_buffers = '64MB'`); err != nil {
		return nil, fmt.Errorf("make shadow tables: %w", err)
	}
	for _, table := range tables {
		if err := t.AddTable(ctx, table.Name, with); err != nil {
			return nil, err
		}
		if len(table.Derived) == 0 {
			var err error
			if table.Derived, err = t.ColumnsExcept(ctx, table.Name, append(append([]string{}, table.Key...), table.Excluded...)); err != nil {
				return nil, err
			}
		}
		t.tables = append(t.tables, table)
	}
	return t, nil
}

// AddTable makes one more shadow, which is neither compared nor replaced.
func (t *ShadowTables) AddTable(ctx context.Context, table, with string) error {
	statement := fmt.Sprintf(`create temporary table %s (like %s including all)`, pgx.Identifier{table}.Sanitize(), t.LiveName(table))
	if with != "" {
		statement += ` with (` + with + `)`
	}
	if _, err := t.conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("make the shadow of %s: %w", table, err)
	}
	return nil
}

// ColumnsExcept are the columns of a real table besides some, in their order.
func (t *ShadowTables) ColumnsExcept(ctx context.Context, table string, besides []string) ([]string, error) {
	rows, err := t.conn.Query(ctx, `
		select column_name from information_schema.columns where table_schema = $1 and table_name = $2 and column_name <> all($3) order by ordinal_position`,
		t.schema, table, besides)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table, err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table, err)
	}
	return columns, nil
}

// LiveName is the name of a real table, for statements.
func (t *ShadowTables) LiveName(table string) string {
	return pgx.Identifier{t.schema, table}.Sanitize()
}

// ShadowName is the name of a table's shadow, for statements.
func ShadowName(table string) string { return pgx.Identifier{"pg_temp", table}.Sanitize() }

// names are those that statements about a table have places for.
func (t *ShadowTables) names(table Table) map[string]string {
	return map[string]string{
		"shadow": ShadowName(table.Name), "real": t.LiveName(table.Name), "same": SameKey(table.Key), "distinct": Distinct(table.Derived), "derived": Assignments(table.Derived, "s"),
	}
}

// Begin begins a transaction that can write the shadows alone.
func (t *ShadowTables) Begin(ctx context.Context) (pgx.Tx, error) { return beginReadOnly(ctx, t.conn) }

// Savepoints gives savepoints of a transaction of the session, in which the shadows alone can be written.
func (t *ShadowTables) Savepoints(tx pgx.Tx) postgres.Beginner { return within{tx} }

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

// Vacuum does what autovacuum does not for temporary tables. It is called outside of a transaction.
func (t *ShadowTables) Vacuum(ctx context.Context) error {
	for _, table := range t.tables {
		if _, err := t.conn.Exec(ctx, `vacuum analyze `+ShadowName(table.Name)); err != nil {
			return fmt.Errorf("tidy the shadow of %s: %w", table.Name, err)
		}
	}
	return nil
}

// Replace makes the real tables what their shadows are, row by row where they differ, in the order in which they were declared.
func (t *ShadowTables) Replace(ctx context.Context, tx pgx.Tx) error {
	for _, table := range t.tables {
		var statements []string
		if len(table.Derived) > 0 {
			statements = append(statements, `update {real} l set {derived} from {shadow} s where {same} and {distinct}`)
		}
		if !table.UserRows {
			statements = append(
				statements,
				`delete from {real} l where not exists (select from {shadow} s where {same})`,
				//nolint:unqueryvet // the shadow was made like it: the columns are the same, whichever there are
				`insert into {real} select s.* from {shadow} s where not exists (select from {real} l where {same})`,
			)
		}
		names := t.names(table)
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, Render(statement, names)); err != nil {
				return fmt.Errorf("put the rebuilt %s in place: %w", table.Name, err)
			}
		}
	}
	return nil
}
