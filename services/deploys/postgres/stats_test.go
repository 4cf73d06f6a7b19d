package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
)

func TestStatistics(t *testing.T) {
	t.Parallel()
	pool := setup(t)
	rollouts := &postgres.Rollouts{DB: pool}
	var all []history.Rollout
	// 100 rollouts with durations of 1 s to 100 s.
	for n := int64(1); n <= 100; n++ {
		all = append(all, newRollout("web", n, n*1000))
	}
	state := func(s string) func(*history.Rollout) { return func(r *history.Rollout) { r.State = new(s) } }
	change := func(c string) func(*history.Rollout) { return func(r *history.Rollout) { r.Change = c } }
	troubled := func(r *history.Rollout) { r.WasStalledOrBlocked = new(true) }
	untimed := func(r *history.Rollout) { r.DurationMs = nil }
	all = append(all,
		newRollout("db", 1, 10, change("created")),
		newRollout("db", 2, 20),
		// failed, because the next rollout is a rollback
		newRollout("db", 3, 30, change("rolled_back")),                                       // a rollback is not a change
		newRollout("db", 4, 0, troubled, state(history.Superseded), untimed),                 // failed
		newRollout("db", 5, 0, state(history.Superseded), untimed),                           // ended, not failed
		newRollout("db", 6, 40, troubled),                                                    // stalled, and completed
		newRollout("db", 7, 50, change("restarted")),                                         // not a change
		newRollout("db", 8, 99999, func(r *history.Rollout) { r.Reconstructed = new(true) }), // without an observed duration
		newRollout("db", 9, 0, state(history.Unknown), untimed),
		newRollout("db", 10, 0, state(history.Running), untimed, troubled), // running: not counted as a change
	)
	save(t, pool, postgres.Rows{Rollouts: all})
	total, workloads, err := rollouts.Stats(t.Context(), postgres.RolloutFilter{}, 10)
	require.NoError(t, err)
	require.EqualValues(t, 110, total.Rollouts)
	require.Len(t, workloads, 2)
	web, db := workloads[0], workloads[1]
	require.Equal(t, "web", web.Name, "the workload with the most rollouts comes first")
	require.Equal(t, 50500*time.Millisecond, *web.P50)
	require.Equal(t, 95050*time.Millisecond, *web.P95)
	require.EqualValues(t, 100, web.Deploys)
	require.Zero(t, web.FailedChanges)

	require.Equal(t, 30*time.Millisecond, *db.P50)
	require.Equal(t, 48*time.Millisecond, *db.P95, "of 10, 20, 30, 40 and 50 ms")
	db.P50, db.P95 = nil, nil
	require.Equal(t, postgres.Stats{
		ClusterUID: "cluster", Namespace: "shop", Kind: "deployment", Name: "db", AgentID: 7,
		Rollouts: 10, Running: 1, Completed: 6, Superseded: 2, Unknown: 1, RolledBack: 1, Changes: 7, FailedChanges: 2,
		Deploys: 4,
	}, db)

	_, workloads, err = rollouts.Stats(t.Context(), postgres.RolloutFilter{}, 1)
	require.NoError(t, err)
	require.Len(t, workloads, 1)
	// A rollback outside of the requested time still shows that a change failed.
	total, _, err = rollouts.Stats(t.Context(),
		postgres.RolloutFilter{Name: "db", Until: newRollout("db", 3, 0).StartedAt}, 10)
	require.NoError(t, err)
	require.EqualValues(t, 2, total.Rollouts)
	require.EqualValues(t, 1, total.FailedChanges)
	total, workloads, err = rollouts.Stats(t.Context(), postgres.RolloutFilter{Name: "none"}, 10)
	require.NoError(t, err)
	require.Equal(t, postgres.Stats{}, total)
	require.Empty(t, workloads)
}
