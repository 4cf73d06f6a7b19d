package readmodel

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
)

// Table describes which part of a table is derived from streams.
type Table struct {
	Name string
	Key  []string
	// Derived columns. Defaults to all but Key and Excluded.
	Derived []string
	// Excluded columns are neither compared nor replaced. Unused with Derived.
	Excluded []string
	// UserRows means that users create and delete the rows; only columns are derived.
	UserRows bool
}

// ShadowTables are the shadow tables of one session.
type ShadowTables struct {
	conn *pgx.Conn
	// schema of the live tables.
	schema string
	tables []Table
}

// NewShadowTables creates empty shadow tables on a connection. storage holds storage parameters of
// the tables, such as "fillfactor = 60"; it may be empty.
func NewShadowTables(
	ctx context.Context, conn *pgx.Conn, tables []Table, storage string,
) (*ShadowTables, error) {
	t := &ShadowTables{conn: conn}
	if err := conn.QueryRow(ctx, `select current_schema()`).Scan(&t.schema); err != nil {
		return nil, fmt.Errorf("create shadow tables: %w", err)
	}
	// The session's buffers for temporary tables are small by default and can be set before their
	// first use.
	if _, err := conn.Exec(ctx, `set temp_buffers = '64MB'`); err != nil {
		return nil, fmt.Errorf("create shadow tables: %w", err)
	}
	for _, table := range tables {
		if err := t.AddTable(ctx, table.Name, storage); err != nil {
			return nil, err
		}
		if len(table.Derived) == 0 {
			var err error
			if table.Derived, err = t.ColumnsExcept(
				ctx, table.Name, append(append([]string{}, table.Key...), table.Excluded...),
			); err != nil {
				return nil, err
			}
		}
		t.tables = append(t.tables, table)
	}
	return t, nil
}

// AddTable creates one more shadow table, which is neither compared nor replaced.
func (t *ShadowTables) AddTable(ctx context.Context, table, storage string) error {
	statement := fmt.Sprintf(
		`create temporary table %s (like %s including all)`, pgx.Identifier{table}.Sanitize(), t.LiveName(table),
	)
	if storage != "" {
		statement += ` with (` + storage + `)`
	}
	if _, err := t.conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("create the shadow table of %s: %w", table, err)
	}
	return nil
}

// ColumnsExcept returns the columns of a live table except some, in their order.
func (t *ShadowTables) ColumnsExcept(ctx context.Context, table string, except []string) ([]string, error) {
	rows, err := t.conn.Query(ctx, `
		select column_name from information_schema.columns
		where table_schema = $1 and table_name = $2 and column_name <> all($3) order by ordinal_position`,
		t.schema, table, except)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table, err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table, err)
	}
	return columns, nil
}

// LiveName returns the quoted name of a live table.
func (t *ShadowTables) LiveName(table string) string {
	return pgx.Identifier{t.schema, table}.Sanitize()
}

// ShadowName returns the quoted name of a shadow table.
func ShadowName(table string) string { return pgx.Identifier{"pg_temp", table}.Sanitize() }

// names are the placeholders of statements about a table.
func (t *ShadowTables) names(table Table) map[string]string {
	return map[string]string{
		"shadow": ShadowName(table.Name), "real": t.LiveName(table.Name), "same": SameKey(table.Key),
		"distinct": Distinct(table.Derived), "derived": Assignments(table.Derived, "s"),
	}
}

// Begin starts a transaction that can write shadow tables only.
func (t *ShadowTables) Begin(ctx context.Context) (pgx.Tx, error) { return beginReadOnly(ctx, t.conn) }

// Savepoints starts savepoints of a transaction that can write shadow tables only.
func (t *ShadowTables) Savepoints(tx pgx.Tx) postgres.Beginner { return savepoints{tx} }

type savepoints struct{ tx pgx.Tx }

func (s savepoints) Begin(ctx context.Context) (pgx.Tx, error) { return beginReadOnly(ctx, s.tx) }

func beginReadOnly(ctx context.Context, db postgres.Beginner) (pgx.Tx, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `set transaction read only`); err != nil {
		_ = tx.Rollback(ctx)
		return nil, fmt.Errorf("protect the live tables: %w", err)
	}
	return tx, nil
}

// Vacuum vacuums and analyzes the shadow tables, which autovacuum cannot. Call it outside of a
// transaction.
func (t *ShadowTables) Vacuum(ctx context.Context) error {
	for _, table := range t.tables {
		if _, err := t.conn.Exec(ctx, `vacuum analyze `+ShadowName(table.Name)); err != nil {
			return fmt.Errorf("vacuum the shadow table of %s: %w", table.Name, err)
		}
	}
	return nil
}

// Replace makes the live tables equal to their shadow tables, row by row where they differ, in the
// declared order.
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
				//nolint:unqueryvet // both tables have the same columns
				`insert into {real} select s.* from {shadow} s where not exists (select from {real} l where {same})`,
			)
		}
		names := t.names(table)
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, Render(statement, names)); err != nil {
				return fmt.Errorf("replace the rows of %s: %w", table.Name, err)
			}
		}
	}
	return nil
}
