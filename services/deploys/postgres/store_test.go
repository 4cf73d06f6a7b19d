package postgres_test

import (
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/publish"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestConcurrentMigrationsCreateSchemaOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var group errgroup.Group
	for range 4 {
		pool := connect(t, url)
		group.Go(func() error { return migrate(t, pool) })
	}
	require.NoError(t, group.Wait())
	pool := connect(t, url)
	require.NoError(t, migrate(t, pool), "a second migration changes nothing")
	var batches int64
	require.NoError(t, pool.QueryRow(t.Context(), `select batches from intake`).Scan(&batches))
	require.Zero(t, batches)
}

func TestFactIsStoredOnce(t *testing.T) {
	t.Parallel()
	pool, store := setup(t), &postgres.Store{}
	save(t, pool, postgres.Rows{Facts: []postgres.Fact{fact("a", "web", 1, "first"), fact("b", "web", 2, "second")}})
	save(t, pool, postgres.Rows{Facts: []postgres.Fact{fact("a", "web", 9, "again"), fact("c", "db", 1, "third")}})
	one, err := store.Fact(t.Context(), pool, "a")
	require.NoError(t, err)
	require.Equal(t, fact("a", "web", 1, "first"), one)
	_, err = store.Fact(t.Context(), pool, "none")
	require.ErrorIs(t, err, postgres.ErrNoFact)
	// The primary key also prevents a second row that is written without the store.
	_, err = pool.Exec(t.Context(), `
		insert into facts (id, workload, sequence, fact, occurred_at, observed_at, data)
		select id, workload, 5, fact, now(), now(), '' from facts limit 1`)
	require.ErrorContains(t, err, "facts_pkey")
	inTx(t, pool, func(tx pgx.Tx) error {
		known, last, err := store.NewBatch(tx).KnownFacts(t.Context(), []string{"a", "c", "x"},
			[]uuid.UUID{workload("web"), workload("none")})
		require.Equal(t, map[string]bool{"a": true, "c": true}, known)
		require.Equal(t, map[uuid.UUID]int64{workload("web"): 2}, last)
		return err
	})
}

func TestPositionsAreClearedAndSet(t *testing.T) {
	t.Parallel()
	pool := setup(t)
	store, stored := &postgres.Store{}, postgres.StoredFacts{DB: pool}
	facts := []postgres.Fact{
		fact("a", "web", 1, ""), fact("b", "web", 2, ""), fact("c", "db", 3, ""), fact("d", "db", 4, ""),
	}
	facts[3].StreamSequence = publish.Dropped
	save(t, pool, postgres.Rows{Facts: facts})
	id, at, found, err := stored.PublishedUpTo(t.Context(), math.MaxInt64)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "c", id)
	require.EqualValues(t, 3, at)
	require.NoError(t, stored.ClearPositions(t.Context(), 1))
	withoutPosition, err := stored.WithoutPosition(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]int64{workload("web"): 2, workload("db"): 3}, withoutPosition, "not the dropped fact")
	require.NoError(t, stored.SetPositions(t.Context(), map[string]int64{"b": 7, "c": 6}))
	id, at, found, err = stored.PublishedUpTo(t.Context(), 6)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "c", id)
	require.EqualValues(t, 6, at)
	withoutPosition, err = stored.WithoutPosition(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, withoutPosition)
	first, err := store.FirstSince(t.Context(), pool, start())
	require.NoError(t, err)
	require.EqualValues(t, 1, first)
}

// A change of a rollout must not overwrite columns with null.
func TestChangeKeepsUnsetColumns(t *testing.T) {
	t.Parallel()
	pool := setup(t)
	rollouts := &postgres.Rollouts{DB: pool}
	full := newRollout("web", 1, 500, func(r *history.Rollout) {
		r.Reason, r.Stalled, r.WasStalledOrBlocked = new("why"), new(true), new(true)
	})
	save(t, pool, postgres.Rows{Rollouts: []history.Rollout{full}})
	partial := newRollout("web", 1, 0, func(r *history.Rollout) {
		r.State, r.DurationMs, r.FirstSequence, r.LastSequence, r.Stalled = nil, nil, nil, 99, new(false)
	})
	save(t, pool, postgres.Rows{Rollouts: []history.Rollout{partial}})
	found, err := rollouts.List(t.Context(), postgres.RolloutFilter{}, postgres.RolloutPage{Size: 10})
	require.NoError(t, err)
	require.Len(t, found, 1)
	full.LastSequence, full.Stalled = 99, new(false)
	want, err := history.MarshalRows([]history.Rollout{full})
	require.NoError(t, err)
	got, err := history.MarshalRows(found)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
}

func TestRolloutsAreFiltered(t *testing.T) {
	t.Parallel()
	pool := setup(t)
	rollouts := &postgres.Rollouts{DB: pool}
	save(t, pool, postgres.Rows{Rollouts: []history.Rollout{
		newRollout("web", 1, 1, func(r *history.Rollout) {
			r.Labels, r.Commit = map[string]string{"app": "web", "tier": "front"}, "abc"
		}),
		newRollout("web", 2, 1, func(r *history.Rollout) {
			r.State, r.Stalled, r.Change = new(history.Running), new(true), "rolled_back"
		}),
		newRollout("db", 1, 1, func(r *history.Rollout) {
			r.AgentID, r.Kind, r.Group, r.ClusterUID = 8, "statefulset", "pr-1", "other"
		}),
	}})
	for name, c := range map[string]struct {
		filter postgres.RolloutFilter
		want   []string
	}{
		"all":                   {postgres.RolloutFilter{}, []string{"web 2", "web 1", "db 1"}},
		"empty list of agents":  {postgres.RolloutFilter{Agents: []int64{}}, nil},
		"agents":                {postgres.RolloutFilter{Agents: []int64{8}}, []string{"db 1"}},
		"an unlisted agent":     {postgres.RolloutFilter{Agents: []int64{8}, AgentID: 7}, nil},
		"one of two labels":     {postgres.RolloutFilter{Labels: map[string]string{"tier": "front"}}, []string{"web 1"}},
		"all labels must match": {postgres.RolloutFilter{Labels: map[string]string{"tier": "front", "app": "db"}}, nil},
		"commit":                {postgres.RolloutFilter{Commit: "abc"}, []string{"web 1"}},
		"group":                 {postgres.RolloutFilter{Group: "pr-1"}, []string{"db 1"}},
		"kind and name": {
			postgres.RolloutFilter{Kind: "deployment", Name: "web", Namespace: "shop"},
			[]string{"web 2", "web 1"},
		},
		"revision":       {postgres.RolloutFilter{Name: "web", Revision: 1}, []string{"web 1"}},
		"stuck":          {postgres.RolloutFilter{Stuck: true}, []string{"web 2"}},
		"states":         {postgres.RolloutFilter{States: []string{history.Completed}}, []string{"web 1", "db 1"}},
		"changes":        {postgres.RolloutFilter{Changes: []string{"rolled_back"}}, []string{"web 2"}},
		"cluster":        {postgres.RolloutFilter{ClusterUID: "other"}, []string{"db 1"}},
		"since":          {postgres.RolloutFilter{Since: newRollout("", 2, 0).StartedAt}, []string{"web 2"}},
		"until":          {postgres.RolloutFilter{Until: newRollout("", 2, 0).StartedAt}, []string{"web 1", "db 1"}},
		"SQL is escaped": {postgres.RolloutFilter{Name: "' or true --"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := rollouts.List(t.Context(), c.filter, postgres.RolloutPage{Size: 10})
			require.NoError(t, err)
			var got []string
			for i := range found {
				got = append(got, found[i].Name+" "+found[i].ID[len("cluster/")+len(found[i].Name)+1:][:1])
			}
			require.Equal(t, c.want, got)
		})
	}
}
