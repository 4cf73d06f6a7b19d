package postgres_test

import (
	"testing"

	"lockstep.internal/libs/readmodel"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
)

// newShadow returns a session with shadow tables that have the given rows.
func newShadow(t *testing.T, pool *pgxpool.Pool, w postgres.Rows) (*pgx.Conn, *postgres.Shadow) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig.Copy())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	shadow, err := postgres.NewShadow(t.Context(), conn)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), beginner{shadow}, func(tx pgx.Tx) error {
		return (&postgres.Store{Silent: true}).Save(t.Context(), tx, w)
	}))
	return conn, shadow
}

// beginner makes pgx.BeginFunc use the transactions of a shadow.
type beginner struct{ *postgres.Shadow }

// storedRows returns rows of each kind.
func storedRows() postgres.Rows {
	return postgres.Rows{
		Agents:    []agents.Agent{{ID: 7, ClusterUID: "cluster"}},
		Workloads: []*ingest.Record[rollout.State]{{ID: workload("web"), AgentID: 7, State: present("cluster")}},
		Facts:     []postgres.Fact{fact("a", "web", 10, "a"), fact("b", "web", 11, "b")},
		Rollouts:  []history.Rollout{newRollout("web", 1, 500)},
	}
}

// different returns the number of different rows of each table.
func different(tables []readmodel.TableComparison) map[string]int64 {
	out := map[string]int64{}
	for _, table := range tables {
		if table.Different > 0 {
			out[table.Name] = table.Different
		}
	}
	return out
}

func TestShadowIsComparedAndReplacesTables(t *testing.T) {
	t.Parallel()
	pool := setup(t)
	save(t, pool, storedRows())
	rebuilt := storedRows()
	rebuilt.Facts[1].Data = "other"
	rebuilt.Facts = append(rebuilt.Facts, fact("c", "web", 12, "c"))
	rebuilt.Rollouts[0].Reason = new("otherwise")
	rebuilt.Agents = nil
	conn, shadow := newShadow(t, pool, rebuilt)
	require.NoError(t, shadow.Vacuum(t.Context()))
	do := func(what func(tx pgx.Tx) error) { require.NoError(t, pgx.BeginFunc(t.Context(), conn, what)) }
	do(func(tx pgx.Tx) error {
		tables, differences, err := shadow.Compare(t.Context(), tx, 3)
		require.Equal(t, map[string]int64{"agents": 1, "facts": 2, "rollouts": 1}, different(tables))
		require.Equal(t,
			[]string{
				"agents 7: is stored, but not in the streams", `facts b: data is "b", the streams give "other"`,
				"facts c: is missing",
			}, differences, "at most 3 differences")
		return err
	})
	do(func(tx pgx.Tx) error { return shadow.Replace(t.Context(), tx) })
	do(func(tx pgx.Tx) error {
		tables, differences, err := shadow.Compare(t.Context(), tx, 10)
		require.Empty(t, different(tables))
		require.Empty(t, differences)
		return err
	})
	// Positions on the stream are not rebuilt: Replace keeps them.
	store := &postgres.Store{}
	one, err := store.Fact(t.Context(), pool, "b")
	require.NoError(t, err)
	require.EqualValues(t, 11, one.StreamSequence)
	require.Equal(t, "other", one.Data)
	var batches int64
	require.NoError(t, pool.QueryRow(t.Context(), `select batches from intake`).Scan(&batches))
	require.EqualValues(t, 2, batches, "readers drop their caches")
}

// Transactions of a rebuild can write only to shadow tables.
func TestShadowCannotWriteTables(t *testing.T) {
	t.Parallel()
	pool := setup(t)
	save(t, pool, storedRows())
	conn, shadow := newShadow(t, pool, postgres.Rows{})
	for _, statement := range []string{
		`delete from deploys.facts`, `update deploys.rollouts set reason = ''`,
		`insert into claims (cluster_uid, since, project_id, agent_id) values ('c', 1, 1, 1)`, `drop table deploys.facts`,
	} {
		tx, err := shadow.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), statement)
		require.ErrorContains(t, err, "read-only transaction", statement)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(outer pgx.Tx) error {
			tx, err := shadow.Savepoints(outer).Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), statement)
			require.ErrorContains(t, err, "read-only transaction", statement)
			return tx.Rollback(t.Context())
		}))
	}
	var facts int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from facts`).Scan(&facts))
	require.Equal(t, 2, facts)
}

func TestStateOfTruncatedStreamIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost postgres.LostMessages
		want map[string]int64
	}{
		"the stream is complete": {
			postgres.LostMessages{},
			map[string]int64{"agents": 1, "workloads": 1, "facts": 2, "rollouts": 1},
		},
		"the stream lacks its beginning": {postgres.LostMessages{Beginning: true}, map[string]int64{}},
		"the stream was restored":        {postgres.LostMessages{Restored: true}, map[string]int64{}},
		"both":                           {postgres.LostMessages{Beginning: true, Restored: true}, map[string]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := setup(t)
			save(t, pool, storedRows())
			conn, shadow := newShadow(t, pool, postgres.Rows{})
			require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				require.NoError(t, shadow.Keep(t.Context(), tx, c.lost))
				tables, _, err := shadow.Compare(t.Context(), tx, 10)
				require.Equal(t, c.want, different(tables))
				return err
			}))
		})
	}
}
