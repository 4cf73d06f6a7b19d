package ingest_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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

// works publishes that a program worked in a workspace at a time after start.
func (w *fixture) works(id uuid.UUID, since time.Duration, programs ...string) {
	w.t.Helper()
	data := events.ActivityProcesses{WorkspaceID: id.String(), WorkedAt: start().Add(since)}
	for _, name := range programs {
		data.Programs = append(data.Programs, events.WorkingProgram{Name: name, ProcessorMs: 30_000})
	}
	w.publish(cell.Activity(id.String()), "activity.processes.v1", event.ServiceSource(string(cell), "gateway"),
		uuid.NewString(), data)
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

// TestWorkingProgramsKeepAWorkspaceAlive has two consumers, and events that arrive twice and late.
func TestWorkingProgramsKeepAWorkspaceAlive(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	watch := &nats.ActivityWatch{
		JetStream: w.js, Processed: w.consumers(0).ActivitySequence, Logger: slog.New(w.logs),
	}
	w.activityReadUntil = watch.ReadUntil
	a, ide := w.agent(7), w.workspace("ide")
	w.configure(agent.Settings{
		StopAfterIdle: milliseconds(2 * time.Hour), ExpiryWarning: milliseconds(15 * time.Minute),
		StopAfterRunning: milliseconds(9 * time.Hour), IdleCountsProcesses: new(true),
	})
	registry := prometheus.NewRegistry()
	var err error
	w.metrics, err = ingest.NewMetrics(registry)
	require.NoError(t, err)
	defer w.startConsumers(0)()
	defer w.startActivity(w.pool)()
	defer w.startActivity(w.pool)()
	counts := func() bool {
		messages := w.published("access.workspace." + ide.ID.String())
		return messages[len(messages)-1]["counts_processes"] == true
	}
	a.tick(time.Minute)
	require.True(t, w.get(ide.ID).CountsProcesses)
	require.True(t, counts(), "gateways know it")

	w.isActive(ide.ID, time.Hour, 9)
	for range 2 {
		w.works(ide.ID, 3*time.Hour, "make", "cc1")
	}
	w.works(ide.ID, 2*time.Hour, "old")
	w.activityRead()
	require.NoError(t, watch.Check(t.Context()))
	require.Equal(t, workspace.Activity{At: start().Add(3 * time.Hour), Program: "make"}, w.get(ide.ID).LastActivity)
	a.tick(5*time.Hour - 16*time.Minute)
	require.Empty(t, w.warnings(ide.ID), "the program keeps it alive")
	a.tick(5*time.Hour - 15*time.Minute)
	require.Equal(t, []string{"stop_after_idle 2026-03-04T10:06:00Z"}, w.warnings(ide.ID), "no answer is no activity")

	w.works(ide.ID, 5*time.Hour-time.Minute, "make") // after the warning
	w.activityRead()
	require.NoError(t, watch.Check(t.Context()))
	a.tick(5 * time.Hour)
	require.Empty(t, w.causes(ide.ID))
	w.isActive(ide.ID, 6*time.Hour, 9)
	w.activityRead()
	require.Equal(t, workspace.Activity{At: start().Add(6 * time.Hour), UserID: 9}, w.get(ide.ID).LastActivity)
	w.works(ide.ID, 8*time.Hour+30*time.Minute, "make")
	w.activityRead()
	require.NoError(t, watch.Check(t.Context()))
	a.tick(8*time.Hour + 45*time.Minute)
	a.tick(9 * time.Hour)
	require.Equal(t, []string{"stop_after_running stopped"}, w.causes(ide.ID), "other limits hold")
	require.False(t, counts(), "a stopped workspace is not asked")
	w.caughtUp()
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP lockstep_state_expiry_warnings_total Warnings that a policy will stop or terminate a workspace, by policy.
		# TYPE lockstep_state_expiry_warnings_total counter
		lockstep_state_expiry_warnings_total{policy="stop_after_idle"} 1
		lockstep_state_expiry_warnings_total{policy="stop_after_running"} 1
	`), "lockstep_state_expiry_warnings_total"))
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
	w.works(uuid.Nil, 0, "make")
	w.works(ide.ID, 0) // no program
	unknown := uuid.New()
	w.isActive(unknown, 0, 9) // was deleted, perhaps
	future := time.Since(start()) + 1000*time.Hour
	w.isActive(ide.ID, future, 9)
	defer w.startActivity(w.pool)()
	w.activityRead()
	require.Len(t, w.deadLetterReasons(), 6)
	require.WithinDuration(t, time.Now(), w.get(ide.ID).LastActivity.At, time.Hour, "at most when it was stored")
}
