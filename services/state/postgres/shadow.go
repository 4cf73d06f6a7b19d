package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
)

// Shadow is a temporary copy of the tables that ingest reads and writes. Its outbox drops every message. It
// is not safe for concurrent use.
type Shadow struct{ *readmodel.ShadowTables }

// RebuiltTable compares a live table with its shadow.
type RebuiltTable = readmodel.TableComparison

// NewShadow creates the tables on a connection: agents and workspaces without derived values, the others empty.
func NewShadow(ctx context.Context, conn *pgx.Conn) (*Shadow, error) {
	declared := []readmodel.Table{}
	for _, table := range rebuiltTables() {
		declared = append(declared, table.Table)
	}
	tables, err := readmodel.NewShadowTables(ctx, conn, declared, "fillfactor = 60")
	if err != nil {
		return nil, err
	}
	if err := tables.AddTable(ctx, "outbox", ""); err != nil {
		return nil, err
	}
	for _, statement := range []string{
		`create function pg_temp.drop_row() returns trigger language plpgsql as 'begin return null; end'`,
		`create trigger drop_messages before insert on pg_temp.outbox for each row execute function pg_temp.drop_row()`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, fmt.Errorf("make shadow tables: %w", err)
		}
	}
	return &Shadow{tables}, nil
}

// Sync copies what is not derived from the live tables: new agents and workspaces, and changes of desired
// states. Terminated workspaces are copied completely, because no more reports change them. So are orphans
// whose deletion was requested.
func (s *Shadow) Sync(ctx context.Context, tx pgx.Tx) error {
	for _, table := range rebuiltTables() {
		if !table.UserRows {
			continue
		}
		wanted, err := s.ColumnsExcept(ctx, table.Name, append(append([]string{}, table.Key...), table.Derived...))
		if err != nil {
			return err
		}
		if err := s.sync(ctx, tx, table, wanted); err != nil {
			return fmt.Errorf("copy the desired state of %s: %w", table.Name, err)
		}
	}
	names := map[string]string{"shadow": readmodel.ShadowName("orphans"), "real": s.LiveName("orphans")}
	for _, statement := range []string{
		// Deletions are requested, not derived. Adopted orphans are workspaces.
		`delete from {shadow} s where desired_revision > 0 or exists (
			select from workspaces w where w.agent_id = s.agent_id and w.id::text = s.workspace and w.actual_state <> 'terminated')`,
		`insert into {shadow} select * from {real} where desired_revision > 0
			on conflict (agent_id, uid) do update set desired_revision = excluded.desired_revision, workspace = excluded.workspace`,
	} {
		if _, err := tx.Exec(ctx, readmodel.Render(statement, names)); err != nil {
			return fmt.Errorf("copy the orphans that are being deleted: %w", err)
		}
	}
	return nil
}

func (s *Shadow) sync(ctx context.Context, tx pgx.Tx, table rebuiltTable, wanted []string) error {
	names := map[string]string{
		"shadow": readmodel.ShadowName(table.Name),
		"real":   s.LiveName(table.Name),
		"same":   readmodel.SameKey(table.Key),
		"wanted": readmodel.Assignments(
			wanted,
			"l",
		),
		"wants":   readmodel.Distinct(wanted),
		"derived": readmodel.Assignments(table.Derived, "l"),
		"heard":   readmodel.Distinct(table.Derived),
		"key":     table.Key[0],
		"reset":   table.reset,
	}
	// Terminated workspaces first: new ones may reuse their names.
	if table.final != "" {
		names["final"] = table.final
		if _, err := tx.Exec(
			ctx,
			readmodel.Render(
				`update {shadow} s set {wanted}, {derived} from {real} l where {same} and {final} and ({wants} or {heard})`,
				names,
			),
		); err != nil {
			return err //nolint:wrapcheck // Sync wraps it
		}
	}
	if _, err := tx.Exec(
		ctx,
		readmodel.Render(`update {shadow} s set {wanted} from {real} l where {same} and {wants}`, names),
	); err != nil {
		return err //nolint:wrapcheck // Sync wraps it
	}
	//nolint:unqueryvet // both tables have the same columns
	rows, err := tx.Query(
		ctx,
		readmodel.Render(
			`insert into {shadow} select l.* from {real} l where not exists (select from {shadow} s where {same}) returning {key}::text`,
			names,
		),
	)
	if err != nil {
		return err //nolint:wrapcheck // Sync wraps it
	}
	added, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err //nolint:wrapcheck // Sync wraps it
	}
	names["unless"] = "true"
	if table.final != "" {
		names["unless"] = "not (" + strings.ReplaceAll(table.final, "l.", "s.") + ")"
	}
	_, err = tx.Exec(
		ctx,
		readmodel.Render(`update {shadow} s set {reset} where {key}::text = any($1) and {unless}`, names),
		added,
	)
	return err //nolint:wrapcheck // Sync wraps it
}

// Unfinished returns the workspaces that are not terminated.
func (s *Shadow) Unfinished(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	rows, err := tx.Query(
		ctx,
		`select id from `+readmodel.ShadowName("workspaces")+` where actual_state <> 'terminated' order by id`,
	)
	if err != nil {
		return nil, fmt.Errorf("list the rebuilt workspaces: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("list the rebuilt workspaces: %w", err)
	}
	return ids, nil
}

// LockLive locks the live agents and workspaces until the transaction ends, in the usual order.
func (s *Shadow) LockLive(ctx context.Context, tx pgx.Tx) error {
	for _, table := range []string{"agents", "workspaces"} {
		if _, err := tx.Exec(ctx, `select from `+s.LiveName(table)+` order by id for no key update`); err != nil {
			return fmt.Errorf("lock all %s: %w", table, err)
		}
	}
	return nil
}
