package ingest_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/workspace"
)

// isActive publishes that a user was active in a workspace at a time after start.
func (w *fixture) isActive(id uuid.UUID, since time.Duration, user int) {
	w.t.Helper()
	w.publish(cell.Activity(id.String()), "activity.workspace.v1", event.ServiceSource(string(cell), "gateway"),
		uuid.NewString(), events.ActivityWorkspace{
			WorkspaceID: id.String(), UserID: user, InputAt: start().Add(since), Sessions: 1,
		})
}

// startActivity starts a consumer of ACTIVITY with a pool and returns a function that stops it.
func (w *fixture) startActivity(pool *pgxpool.Pool) func() {
	w.t.Helper()
	in := w.consumers(0)
	in.Pool = pool
	consumer, err := in.Activity()
	require.NoError(w.t, err)
	return w.startAll(consumer.Run)
}

// activityRead waits until all activity is consumed.
func (w *fixture) activityRead() {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), topology.StreamActivity)
	require.NoError(w.t, err)
	last := s.CachedInfo().State.LastSeq
	w.waitForCursor(topology.StreamActivity, func(sequence uint64) bool { return sequence == last })
}

// TestIdleWorkspaceStopsOnce has two replicas, of which one ends.
func TestIdleWorkspaceStopsOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	watch := &nats.ActivityWatch{
		JetStream: w.js, Processed: w.consumers(0).ActivitySequence, Logger: slog.New(w.logs),
	}
	w.activityReadUntil = watch.ReadUntil
	a, ide := w.agent(7), w.workspace("ide")
	w.configure(agent.Settings{
		StopAfterIdle: milliseconds(2 * time.Hour), ExpiryWarning: milliseconds(15 * time.Minute),
	})
	defer w.startConsumers(0)()
	w.isActive(ide.ID, time.Hour, 9)
	require.NoError(t, watch.Check(t.Context()))
	require.Zero(t, watch.ReadUntil(), "activity is not read")
	a.tick(3 * time.Hour)
	require.Empty(t, w.warnings(ide.ID))

	stopFirst := w.startActivity(w.pool)
	w.activityRead()
	stopFirst()
	require.Equal(t, workspace.Activity{At: start().Add(time.Hour), UserID: 9}, w.get(ide.ID).LastActivity)
	w.isActive(ide.ID, 2*time.Hour, 10)
	w.isActive(ide.ID, 90*time.Minute, 9) // late, of another gateway
	defer w.startActivity(w.pool)()
	w.activityRead()
	require.NoError(t, watch.Check(t.Context()))
	require.NotZero(t, watch.ReadUntil())
	require.Equal(t, workspace.Activity{At: start().Add(2 * time.Hour), UserID: 10}, w.get(ide.ID).LastActivity)

	a.tick(3*time.Hour + 44*time.Minute)
	require.Empty(t, w.warnings(ide.ID))
	a.tick(3*time.Hour + 45*time.Minute)
	require.Equal(t, []string{"stop_after_idle 2026-03-04T09:06:00Z"}, w.warnings(ide.ID))
	a.tick(4*time.Hour - time.Second)
	require.Empty(t, w.causes(ide.ID))
	w.caughtUp()
	var replicas errgroup.Group
	for range 2 {
		replicas.Go(func() error {
			return postgres.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
				tick := &ingest.Observed{AgentID: 7, ClusterUID: a.cluster, At: start().Add(4 * time.Hour), Tick: true}
				tick.StoredIn(1, tick.At)
				return w.ingest().HandleObserved(t.Context(), w.ingestStores.In(tx), []*ingest.Observed{tick})
			})
		})
	}
	require.NoError(t, replicas.Wait())
	require.Equal(t, []string{"stop_after_idle stopped"}, w.causes(ide.ID))

	// A client that reconnects does not start it.
	w.isActive(ide.ID, 4*time.Hour+time.Minute, 9)
	w.activityRead()
	a.tick(5 * time.Hour)
	require.Equal(t, start().Add(4*time.Hour+time.Minute), w.get(ide.ID).LastActivity.At)
	require.Equal(t, workspace.DesiredStopped, w.get(ide.ID).DesiredState)
	require.Len(t, w.causes(ide.ID), 1)
	require.Len(t, w.warnings(ide.ID), 1)
}

// TestNoActivityIsLostWhenReplicasAreKilled breaks the connections to the database again and again.
func TestNoActivityIsLostWhenReplicasAreKilled(t *testing.T) {
	t.Parallel()
	const rounds, size = 5, 40
	w := newFixture(t)
	ids := make([]uuid.UUID, size)
	for i := range ids {
		ids[i] = w.workspace(fmt.Sprintf("ws-%d", i)).ID
	}
	cfg := w.pool.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = "killed"
	for range 2 {
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg.Copy())
		require.NoError(t, err)
		defer pool.Close()
		defer w.startActivity(pool)()
	}
	for round := range rounds {
		for i, id := range ids {
			w.isActive(id, time.Duration(round*size+i)*time.Second, 9)
			if i%10 == 0 {
				w.exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'killed'`)
			}
		}
	}
	w.activityRead()
	for i, id := range ids {
		require.Equal(t, start().Add(time.Duration((rounds-1)*size+i)*time.Second), w.get(id).LastActivity.At)
	}
	require.Empty(t, w.deadLetterReasons())
}

func TestActivityThatCannotBeDecodedIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ide, gateway := w.workspace("ide"), event.ServiceSource(string(cell), "gateway")
	activity := func(id string) events.ActivityWorkspace {
		return events.ActivityWorkspace{WorkspaceID: id, UserID: 9, InputAt: start()}
	}
	id := ide.ID.String()
	w.publish(cell.Activity("x"), "activity.workspace.v1", gateway, "1", activity("x"))
	w.publish(cell.Activity(id), "activity.workspace.v1", gateway, "2", activity(uuid.NewString()))
	w.publish(cell.Activity(id), "activity.workspace.v1", event.ServiceSource(string(cell), "relay"), "3", activity(id))
	old := activity(id)
	old.InputAt = time.Time{}
	w.publish(cell.Activity(id), "activity.workspace.v1", gateway, "4", old)
	unknown := uuid.New()
	w.isActive(unknown, 0, 9) // was deleted, perhaps
	future := time.Since(start()) + 1000*time.Hour
	w.isActive(ide.ID, future, 9)
	defer w.startActivity(w.pool)()
	w.activityRead()
	require.Len(t, w.deadLetterReasons(), 4)
	require.WithinDuration(t, time.Now(), w.get(ide.ID).LastActivity.At, time.Hour, "at most when it was stored")
}
