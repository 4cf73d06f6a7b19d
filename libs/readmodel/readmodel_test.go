package readmodel_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// setup creates two tables: one with user columns and derived columns, one with derived rows only.
func setup(t *testing.T) (*pgx.Conn, *readmodel.ShadowTables) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.Database(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	exec(t, conn,
		`create table workspaces (id int primary key, desired text not null, actual text not null default '')`,
		`create table facts (a int, b int, text text not null, told int not null default 0, primary key (a, b))`,
		`insert into workspaces values (1, 'tea', 'starting'), (2, 'milk', '')`,
		`insert into facts values (1, 1, 'same', 7), (1, 2, 'real', 7), (2, 1, 'too much', 7)`)
	tables, err := readmodel.NewShadowTables(t.Context(), conn, []readmodel.Table{
		{Name: "workspaces", Key: []string{"id"}, Derived: []string{"actual"}, UserRows: true},
		{Name: "facts", Key: []string{"a", "b"}, Excluded: []string{"told"}},
	}, "fillfactor = 60")
	require.NoError(t, err)
	return conn, tables
}

type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func exec(t *testing.T, db executor, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := db.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

// rebuilt fills the shadow tables with the code for the live tables.
func rebuilt(t *testing.T, tables *readmodel.ShadowTables) {
	t.Helper()
	tx, err := tables.Begin(t.Context())
	require.NoError(t, err)
	exec(t, tx,
		`insert into workspaces values (1, 'tea', 'running'), (9, 'unknown', 'actual')`,
		`insert into facts values (1, 1, 'same'), (1, 2, 'should'), (3, 1, 'missing')`)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, tables.Vacuum(t.Context()))
}

func TestLiveTablesAreComparedAndReplaced(t *testing.T) {
	t.Parallel()
	conn, tables := setup(t)
	rebuilt(t, tables)
	require.NoError(t, postgres.InTx(t.Context(), conn, func(tx pgx.Tx) error {
		compared, differences, err := tables.Compare(t.Context(), tx, 3)
		require.NoError(t, err)
		require.Equal(
			t, []readmodel.TableComparison{{Name: "workspaces", Rows: 2, Different: 1}, {Name: "facts", Rows: 3, Different: 3}},
			compared,
		)
		require.Equal(t, []string{
			`workspaces 1: actual is "starting", the streams give "running"`,
			`facts 1/2: text is "real", the streams give "should"`,
			`facts 2/1: is stored, but not in the streams`,
		}, differences, "no more than asked for")
		return tables.Replace(t.Context(), tx)
	}))
	read := func(sql string) []string {
		rows, err := conn.Query(t.Context(), sql)
		require.NoError(t, err)
		out, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return out
	}
	require.Equal(
		t, []string{"1 tea running", "2 milk "},
		read(`select concat_ws(' ', id, desired, actual) from `+tables.LiveName("workspaces")+` order by id`),
		"rows are people's",
	)
	require.Equal(
		t, []string{"1 1 same 7", "1 2 should 7", "3 1 missing 0"},
		read(`select concat_ws(' ', a, b, text, told) from `+tables.LiveName("facts")+` order by a, b`),
	)
}

func TestLiveTablesAreReadOnlyDuringARebuild(t *testing.T) {
	t.Parallel()
	conn, tables := setup(t)
	for name, begin := range map[string]func() (pgx.Tx, error){
		"alone": func() (pgx.Tx, error) { return tables.Begin(t.Context()) },
		"within": func() (pgx.Tx, error) {
			outer, err := conn.Begin(t.Context())
			require.NoError(t, err)
			return tables.Savepoints(outer).Begin(t.Context())
		},
	} {
		tx, err := begin()
		require.NoError(t, err, name)
		_, err = tx.Exec(t.Context(), `delete from `+tables.LiveName("facts"))
		require.ErrorContains(t, err, "read-only", name)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	require.Equal(
		t, `a b '{1,2}' `, readmodel.Render(`{one} {two} '{1,2}' {none}`, map[string]string{"one": "a", "two": "b"}),
	)
	require.Equal(t, "l.a = s.a and l.b = s.b", readmodel.SameKey([]string{"a", "b"}))
	require.Equal(t, "false", readmodel.Distinct(nil))
	require.Equal(t, "a = l.a", readmodel.Assignments([]string{"a"}, "l"))
}
