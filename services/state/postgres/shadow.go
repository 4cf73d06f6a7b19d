package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
)

// Shadow is a set of temporary copies of the tables that ingest reads and writes. It is not safe for concurrent use.
type Shadow struct{ *readmodel.ShadowTables }

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
	// Members are stored by batch, so their rows differ from the live ones. A rebuild judges each resync at its end.
	if err := tables.AddTable(ctx, "resync_members", ""); err != nil {
		return nil, err
	}
	if err := tables.AddTable(ctx, "resyncs_to_judge", ""); err != nil {
		return nil, err
	}
	for _, trigger := range []string{
		`count_inserted after insert on pg_temp.observed_objects referencing new table as changed
			for each statement execute function count_inserted_objects()`,
		`count_deleted after delete on pg_temp.observed_objects referencing old table as changed
			for each statement execute function count_deleted_objects()`,
	} {
		if _, err := conn.Exec(ctx, `create trigger `+trigger); err != nil {
			return nil, fmt.Errorf("count the objects of the shadow tables: %w", err)
		}
	}
	return &Shadow{tables}, nil
}

// Sync copies the columns that are not derived from streams: new agents and workspaces, and changes of desired
// states. Terminated workspaces are copied completely, because no more events change them. So are orphans whose
// deletion was requested.
func (s *Shadow) Sync(ctx context.Context, tx pgx.Tx) error {
	for _, table := range rebuiltTables() {
		if !table.UserRows {
			continue
		}
		stored, err := s.ColumnsExcept(ctx, table.Name, slices.Concat(table.Key, table.Derived, table.counted))
		if err != nil {
			return err
		}
		if err := s.sync(ctx, tx, table, stored); err != nil {
			return fmt.Errorf("copy the desired state of %s: %w", table.Name, err)
		}
	}
	names := map[string]string{"shadow": readmodel.ShadowName("orphans"), "live": s.LiveName("orphans")}
	for _, statement := range []string{
		// Deletions are requested, not derived. Adopted orphans are workspaces.
		`delete from {shadow} s where desired_revision > 0 or exists (
			select from workspaces w
				where w.agent_id = s.agent_id and w.id::text = s.workspace and w.actual_state <> 'terminated')`,
		`insert into {shadow} select * from {live} where desired_revision > 0
			on conflict (agent_id, uid) do update
				set desired_revision = excluded.desired_revision, workspace = excluded.workspace`,
	} {
		if _, err := tx.Exec(ctx, readmodel.Render(statement, names)); err != nil {
			return fmt.Errorf("copy the orphans that are being deleted: %w", err)
		}
	}
	return nil
}

func (s *Shadow) sync(ctx context.Context, tx pgx.Tx, table rebuiltTable, stored []string) error {
	names := map[string]string{
		"shadow":          readmodel.ShadowName(table.Name),
		"live":            s.LiveName(table.Name),
		"same":            readmodel.SameKey(table.Key),
		"stored":          readmodel.Assignments(stored, "l"),
		"stored_differs":  readmodel.Distinct(stored),
		"derived":         readmodel.Assignments(table.Derived, "l"),
		"derived_differs": readmodel.Distinct(table.Derived),
		"key":             table.Key[0],
		"reset":           table.reset,
	}
	// Terminated workspaces first: new ones may reuse their names.
	if table.final != "" {
		names["final"] = table.final
		if _, err := tx.Exec(
			ctx,
			readmodel.Render(
				`update {shadow} s set {stored}, {derived} from {live} l
					where {same} and {final} and ({stored_differs} or {derived_differs})`,
				names,
			),
		); err != nil {
			return err //nolint:wrapcheck // Sync wraps it
		}
	}
	if _, err := tx.Exec(
		ctx,
		readmodel.Render(`update {shadow} s set {stored} from {live} l where {same} and {stored_differs}`, names),
	); err != nil {
		return err //nolint:wrapcheck // Sync wraps it
	}
	//nolint:unqueryvet // both tables have the same columns
	rows, err := tx.Query(
		ctx,
		readmodel.Render(
			`insert into {shadow} select l.* from {live} l where not exists (select from {shadow} s where {same})
				returning {key}::text`,
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
