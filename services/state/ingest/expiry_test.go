package ingest_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/workspace"
)

// configure sets the configuration of agent 7.
func (w *fixture) configure(settings agent.Settings) {
	w.t.Helper()
	_, err := w.directory().ConfigureAgent(w.t.Context(), 7, settings)
	require.NoError(w.t, err)
}

func milliseconds(d time.Duration) *agent.Milliseconds {
	m := agent.Milliseconds(d)
	return &m
}

// tick ingests a tick with this time after start, both by the agent's clock and the stream's.
func (a *fakeAgent) tick(since time.Duration) {
	a.t.Helper()
	a.tickOf(since, since)
}

// tickOf ingests a tick with the agent's time after start, as if the stream had stored it at another time.
func (a *fakeAgent) tickOf(since, stored time.Duration) {
	a.t.Helper()
	a.now = start().Add(since)
	a.caughtUp()
	a.tx(func(tx pgx.Tx) error {
		tick := &ingest.Observed{AgentID: a.id, ClusterUID: a.cluster, At: a.now, Tick: true}
		tick.StoredIn(1, start().Add(stored))
		return a.ingest().HandleObserved(a.t.Context(), a.ingestStores.In(tx), []*ingest.Observed{tick})
	})
}

// warnings returns policy and deadline of each expiry_warning event.
func (w *fixture) warnings(id uuid.UUID) []string {
	w.t.Helper()
	published := w.published("workspace.4." + id.String() + ".expiry_warning")
	out := make([]string, 0, len(published))
	for _, e := range published {
		out = append(out, e["policy"].(string)+" "+e["expires_at"].(string))
	}
	return out
}

func TestPolicyExpiresByTicks(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	w.configure(
		agent.Settings{
			StopAfterRunning:      milliseconds(8 * time.Hour),
			TerminateAfterStopped: milliseconds(100 * time.Hour),
			ExpiryWarning:         milliseconds(time.Hour),
		},
	)
	defer w.startConsumers(0)()
	a.tick(0)
	a.applies(ide.ID, 1)
	a.reportsDeployment(running(ide, 8))
	w.caughtUp()
	require.Equal(t, start().Add(7*time.Hour), w.get(ide.ID).RecomputeAt)
	a.tick(7*time.Hour - time.Second)
	require.Empty(t, w.warnings(ide.ID))
	a.tick(7 * time.Hour)
	a.tick(7*time.Hour + time.Minute)
	require.Equal(t, []string{"stop_after_running 2026-03-04T13:06:00Z"}, w.warnings(ide.ID), "once")
	a.tick(8*time.Hour - time.Second)
	require.Equal(t, workspace.DesiredRunning, w.get(ide.ID).DesiredState)
	a.tick(8 * time.Hour)
	stopped := w.get(ide.ID)
	require.Equal(t, workspace.DesiredStopped, stopped.DesiredState)
	require.Equal(t, []string{"stop_after_running stopped"}, w.causes(ide.ID))
	require.Equal(t, "workspace ide is stopped: it ran for 8h, the limit of its agent; start it to continue",
		w.published("workspace.4." + ide.ID.String() + ".desired_state_changed")[0]["message"])
	require.Len(t, w.published("desired.7."+ide.ID.String()), 2, "a second desired revision is published")

	// The user starts it at 14:30 by the server's clock, which differs from the agent's clock.
	again := start().Add(9*time.Hour + 30*time.Minute)
	w.change(ide.ID, func(was workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
		return was.SetDesired(workspace.DesiredRunning, 9, again)
	})
	a.tick(10 * time.Hour)
	require.Equal(t, again.Add(7*time.Hour), w.get(ide.ID).RecomputeAt)
	a.tick(16*time.Hour + 30*time.Minute)
	a.tick(17*time.Hour + 30*time.Minute)
	require.Equal(
		t,
		[]string{"stop_after_running 2026-03-04T13:06:00Z", "stop_after_running 2026-03-04T22:36:00Z"},
		w.warnings(ide.ID),
	)
	require.Equal(
		t,
		[]string{"stop_after_running stopped", "user running", "stop_after_running stopped"},
		w.causes(ide.ID),
	)
	a.tick(117 * time.Hour)
	a.tick(118 * time.Hour)
	require.Equal(t, workspace.DesiredTerminated, w.get(ide.ID).DesiredState)
	a.tick(1000 * time.Hour)
	require.Equal(t, "terminate_after_stopped terminated", w.causes(ide.ID)[3])
	require.Len(t, w.causes(ide.ID), 4)
}

func TestJumpOfAnAgentsClockTerminatesNothing(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	w.configure(agent.Settings{MaxAge: milliseconds(10 * time.Hour), ExpiryWarning: milliseconds(time.Hour)})
	defer w.startConsumers(0)()
	a.tick(0)
	a.tickOf(year, time.Minute)
	a.tickOf(year+time.Hour, time.Hour)
	a.tickOf(-year, 2*time.Hour)
	a.tickOf(-year, 9*time.Hour-time.Second)
	require.Empty(t, w.warnings(ide.ID))
	require.Empty(t, w.causes(ide.ID))
	a.tickOf(-year, 9*time.Hour)
	require.Equal(t, []string{"max_age 2026-03-04T15:06:00Z"}, w.warnings(ide.ID), "the agent's clock is a year behind")
	a.tickOf(10*time.Hour, 9*time.Hour+time.Second)
	a.tickOf(year, 10*time.Hour-time.Second)
	require.Empty(t, w.causes(ide.ID), "an hour after the warning, by the stream's clock")
	a.tickOf(-year, 10*time.Hour)
	require.Equal(t, []string{"max_age terminated"}, w.causes(ide.ID))
	require.Len(t, w.warnings(ide.ID), 1)
	require.Len(t, w.logs.matching("the clock of an agent jumped"), 6)
}

func TestUnreportedWorkspaceTerminates(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	w.configure(agent.Settings{MaxAge: milliseconds(time.Hour), ExpiryWarning: milliseconds(0)})
	defer w.startConsumers(0)()
	a.tick(time.Hour - time.Second)
	require.Equal(t, actualstate.CreationRequested, w.get(ide.ID).ActualState)
	require.Equal(t, workspace.DesiredRunning, w.get(ide.ID).DesiredState)
	a.tick(time.Hour)
	require.Equal(t, workspace.DesiredTerminated, w.get(ide.ID).DesiredState)
	require.Empty(t, w.warnings(ide.ID), "no warning is published")
}

func TestConfigurationTakesEffectAtTheNextTick(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide, gone := w.agent(7), w.workspace("ide"), w.workspace("gone")
	w.exec(`update workspaces set actual_state = 'terminated', desired_state = 'terminated' where name = 'gone'`)
	others, created, err := workspace.New(
		workspace.Creation{
			Name:      "others",
			ProjectID: 4,
			AgentID:   8,
			UserID:    9,
			Spec:      workspace.Spec{Image: "ide:9"},
			Now:       start(),
		},
	)
	require.NoError(t, err)
	w.tx(func(tx pgx.Tx) error { return w.insert(tx, others, created...) })
	defer w.startConsumers(0)()
	a.tick(50 * time.Hour)
	require.Zero(t, w.get(ide.ID).RecomputeAt, "no deadline")
	w.configure(agent.Settings{StopAfterRunning: milliseconds(10 * time.Hour), ExpiryWarning: milliseconds(time.Minute)})
	a.tick(51 * time.Hour)
	require.Equal(
		t,
		[]string{"stop_after_running 2026-03-06T08:07:00Z"},
		w.warnings(ide.ID),
		"an overdue policy first sends a warning",
	)
	a.tick(51*time.Hour + time.Minute - time.Millisecond)
	require.Empty(t, w.causes(ide.ID))
	w.configure(agent.Settings{StopAfterRunning: milliseconds(0)})
	a.tick(51*time.Hour + time.Minute)
	require.Empty(t, w.causes(ide.ID), "the policy is disabled")
	require.Zero(t, w.get(ide.ID).RecomputeAt)
	require.Zero(t, w.get(ide.ID).WarnedStateDeadline)
	require.Equal(t, workspace.DesiredTerminated, w.get(gone.ID).DesiredState)
	require.Empty(t, w.causes(gone.ID))

	var behind int
	require.NoError(
		t,
		w.pool.QueryRow(t.Context(), `select count(*) from agents where considered_revision <> configuration_revision`).
			Scan(&behind),
	)
	require.Zero(t, behind)
	require.Equal(t, others.RecomputeAt, w.get(others.ID).RecomputeAt, "its agent has not ticked")
	require.Len(t, w.published("workspace.%.expiry_warning"), 1, "no warning for workspaces of other agents")
}

func TestPodTimeoutComesFromTheAgentConfiguration(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(0)()
	a.tick(0)
	a.reportsDeployment(
		deploymentReport{
			name:      "ide",
			workspace: ide.ID,
			version:   8,
			spec:      1,
			revision:  "1",
			progress:  "ReplicaSetUpdated",
			template:  1,
		},
	)
	a.replicaSet(ide, 9)
	since := start()
	a.pod(ide, "ide-1", 10, func(p *events.ObservedPod) {
		p.Conditions = []events.Condition{
			{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "no room", LastTransitionTime: &since},
		}
	})
	a.tick(time.Minute)
	require.Equal(t, actualstate.Starting, w.get(ide.ID).ActualState)
	w.configure(agent.Settings{UnschedulablePatience: milliseconds(30 * time.Second)})
	a.tick(time.Minute + time.Second)
	require.Equal(t, actualstate.Failed, w.get(ide.ID).ActualState, "the timeout was shortened")
	w.configure(agent.Settings{UnschedulablePatience: milliseconds(0)})
	a.tick(1000 * time.Hour)
	require.Equal(t, actualstate.Starting, w.get(ide.ID).ActualState, "timeout 0 disables the limit")
}
