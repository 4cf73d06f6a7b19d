package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
)

// Shadow is a second, temporary set of the tables that ingest reads and writes, in one session: there, their names mean the shadows, so that the code that keeps the
// real ones fills these. They end with the session. Its transactions are read only, which lets temporary tables be written and nothing else: whatever is read into
// a Shadow, and by whichever code, the real tables stay as they are. What is put into the outbox is dropped.
//
// It belongs to one goroutine.
type Shadow struct {
	conn *pgx.Conn
	// schema has the real tables.
	schema string
}

// NewShadow makes the shadows on a connection: agents and workspaces as they are wanted, with nothing heard of them; the others empty.
func NewShadow(ctx context.Context, conn *pgx.Conn) (*Shadow, error) {
	s := &Shadow{conn: conn}
	if err := conn.QueryRow(ctx, `select current_schema()`).Scan(&s.schema); err != nil {
		return nil, fmt.Errorf("make shadow tables: %w", err)
	}
	// The buffers of temporary tables are the session's own, small by default, and can be set until the first is used.
	statements := []string{`set temp_buffers = '64MB'`}
	for _, table := range rebuiltTables() {
		statements = append(statements, fmt.Sprintf(`create temporary table %s (like %s including all) with (fillfactor = 60)`, table.name, s.real(table.name)))
	}
	statements = append(
		statements,
		fmt.Sprintf(`create temporary table outbox (like %s including all)`, s.real("outbox")),
		`create function pg_temp.drop_row() returns trigger language plpgsql as 'begin return null; end'`,
		`create trigger nobody_is_told before insert on pg_temp.outbox for each row execute function pg_temp.drop_row()`,
	)
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

// Sync brings over what is wanted now, in a transaction that is not read only: agents and workspaces that came to be, and changes of those that are there. Workspaces
// that are terminated are brought over whole: there is nothing more to hear of them. So are orphans whose deletion was asked for.
func (s *Shadow) Sync(ctx context.Context, tx pgx.Tx) error {
	for _, table := range rebuiltTables() {
		if !table.fixed {
			continue
		}
		wanted, err := s.wanted(ctx, tx, table)
		if err != nil {
			return err
		}
		if err := s.sync(ctx, tx, table, wanted); err != nil {
			return fmt.Errorf("bring over what is wanted of %s: %w", table.name, err)
		}
	}
	names := map[string]string{"shadow": shadow("orphans"), "real": s.real("orphans")}
	for _, statement := range []string{
		// Orphans whose deletion was asked for are there until they are gone, and so known after that; whoever was adopted is none.
		`delete from {shadow} s where desired_revision > 0 or exists (
			select from workspaces w where w.agent_id = s.agent_id and w.id::text = s.workspace and w.actual_state <> 'terminated')`,
		`insert into {shadow} select * from {real} where desired_revision > 0
			on conflict (agent_id, uid) do update set desired_revision = excluded.desired_revision, workspace = excluded.workspace`,
	} {
		if _, err := tx.Exec(ctx, fill(statement, names)); err != nil {
			return fmt.Errorf("bring over the orphans that shall be deleted: %w", err)
		}
	}
	return nil
}

// wanted are the columns of a table that are neither its key nor derived.
func (s *Shadow) wanted(ctx context.Context, tx pgx.Tx, table rebuiltTable) ([]string, error) {
	rows, err := tx.Query(ctx, `
		select column_name from information_schema.columns where table_schema = $1 and table_name = $2 and column_name <> all($3) order by ordinal_position`,
		s.schema, table.name, append(append([]string{}, table.key...), table.derived...))
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table.name, err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table.name, err)
	}
	return columns, nil
}

func (s *Shadow) sync(ctx context.Context, tx pgx.Tx, table rebuiltTable, wanted []string) error {
	names := map[string]string{
		"shadow": shadow(table.name), "real": s.real(table.name), "same": same(table.key),
		"wanted": assignments(wanted), "wants": distinct(wanted), "derived": assignments(table.derived), "heard": distinct(table.derived), "key": table.key[0], "reset": table.reset,
	}
	// Those that are final come first: their names are free again for those that came to be.
	if table.final != "" {
		names["final"] = table.final
		if _, err := tx.Exec(ctx, fill(`update {shadow} s set {wanted}, {derived} from {real} l where {same} and {final} and ({wants} or {heard})`, names)); err != nil {
			return err //nolint:wrapcheck // Sync says what it was doing
		}
	}
	if _, err := tx.Exec(ctx, fill(`update {shadow} s set {wanted} from {real} l where {same} and {wants}`, names)); err != nil {
		return err //nolint:wrapcheck // Sync says what it was doing
	}
	//nolint:unqueryvet // the shadow was made like it: the columns are the same, whichever there are
	rows, err := tx.Query(ctx, fill(`insert into {shadow} select l.* from {real} l where not exists (select from {shadow} s where {same}) returning {key}::text`, names))
	if err != nil {
		return err //nolint:wrapcheck // Sync says what it was doing
	}
	added, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err //nolint:wrapcheck // Sync says what it was doing
	}
	names["unless"] = "true"
	if table.final != "" {
		names["unless"] = "not (" + strings.ReplaceAll(table.final, "l.", "s.") + ")"
	}
	_, err = tx.Exec(ctx, fill(`update {shadow} s set {reset} where {key}::text = any($1) and {unless}`, names), added)
	return err //nolint:wrapcheck // Sync says what it was doing
}

// Unfinished are the workspaces whose state can still become another one.
func (s *Shadow) Unfinished(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `select id from `+shadow("workspaces")+` where actual_state <> 'terminated' order by id`)
	if err != nil {
		return nil, fmt.Errorf("list the rebuilt workspaces: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("list the rebuilt workspaces: %w", err)
	}
	return ids, nil
}

// LockReal locks the real agents and workspaces until the transaction ends, in the order in which everybody does.
func (s *Shadow) LockReal(ctx context.Context, tx pgx.Tx) error {
	for _, table := range []string{"agents", "workspaces"} {
		if _, err := tx.Exec(ctx, `select from `+s.real(table)+` order by id for no key update`); err != nil {
			return fmt.Errorf("lock all %s: %w", table, err)
		}
	}
	return nil
}
