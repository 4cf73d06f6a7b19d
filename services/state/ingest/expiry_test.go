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
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

// configure sets what operators set for agent 7.
func (w *fixture) configure(settings agent.Settings) {
	w.t.Helper()
	directory := &store.Directory{DB: w.pool, Encoder: w.encoder, Now: time.Now}
	_, err := directory.ConfigureAgent(w.t.Context(), 7, settings)
	require.NoError(w.t, err)
}

func lasting(d time.Duration) *agent.Milliseconds {
	m := agent.Milliseconds(d)
	return &m
}

// tick is a tick of the agent at a time since the start.
func (a *fakeAgent) tick(since time.Duration) {
	a.t.Helper()
	a.now = start().Add(since)
	a.ticks()
	a.caughtUp()
}

// warnings are the policies that were told to end the workspace soon, and when.
func (w *fixture) warnings(id uuid.UUID) []string {
	w.t.Helper()
	told := w.published("workspace.4." + id.String() + ".expiry_warning")
	out := make([]string, 0, len(told))
	for _, e := range told {
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
			StopAfterRunning:      lasting(8 * time.Hour),
			TerminateAfterStopped: lasting(100 * time.Hour),
			ExpiryWarning:         lasting(time.Hour),
		},
	)
	defer w.begin(0)()
	a.tick(0)
	a.applies(ide.ID, 1)
	a.reportsDeployment(running(ide, 8))
	w.caughtUp()
	require.Equal(t, start().Add(7*time.Hour), w.get(ide.ID).ReconsiderAt)
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
	require.Len(t, w.published("desired.7."+ide.ID.String()), 2, "the cluster is told")

	// Its user starts it at half past 14, by a clock that is not the agent's.
	again := start().Add(9*time.Hour + 30*time.Minute)
	w.change(ide.ID, func(was workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
		return was.SetDesired(workspace.DesiredRunning, 9, again)
	})
	a.tick(10 * time.Hour)
	require.Equal(t, again.Add(7*time.Hour), w.get(ide.ID).ReconsiderAt)
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

func TestUnreportedWorkspaceTerminates(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	w.configure(agent.Settings{MaxAge: lasting(time.Hour), ExpiryWarning: lasting(0)})
	defer w.begin(0)()
	a.tick(time.Hour - time.Second)
	require.Equal(t, actualstate.CreationRequested, w.get(ide.ID).ActualState)
	require.Equal(t, workspace.DesiredRunning, w.get(ide.ID).DesiredState)
	a.tick(time.Hour)
	require.Equal(t, workspace.DesiredTerminated, w.get(ide.ID).DesiredState)
	require.Empty(t, w.warnings(ide.ID), "nobody is to be warned")
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
	w.tx(func(tx pgx.Tx) error { return w.workspaces.Insert(t.Context(), tx, others, created) })
	defer w.begin(0)()
	a.tick(50 * time.Hour)
	require.Zero(t, w.get(ide.ID).ReconsiderAt, "nothing is to come")
	w.configure(agent.Settings{StopAfterRunning: lasting(10 * time.Hour), ExpiryWarning: lasting(time.Minute)})
	a.tick(51 * time.Hour)
	require.Equal(
		t,
		[]string{"stop_after_running 2026-03-06T08:07:00Z"},
		w.warnings(ide.ID),
		"a policy that is due is warned of first",
	)
	a.tick(51*time.Hour + time.Minute - time.Millisecond)
	require.Empty(t, w.causes(ide.ID))
	w.configure(agent.Settings{StopAfterRunning: lasting(0)})
	a.tick(51*time.Hour + time.Minute)
	require.Empty(t, w.causes(ide.ID), "the policy is lifted")
	require.Zero(t, w.get(ide.ID).ReconsiderAt)
	require.Zero(t, w.get(ide.ID).ExpiryWarnedOf)
	require.Equal(t, workspace.DesiredTerminated, w.get(gone.ID).DesiredState)
	require.Empty(t, w.causes(gone.ID))

	var behind int
	require.NoError(
		t,
		w.pool.QueryRow(t.Context(), `select count(*) from agents where considered_revision <> configuration_revision`).
			Scan(&behind),
	)
	require.Zero(t, behind)
	require.Equal(t, others.ReconsiderAt, w.get(others.ID).ReconsiderAt, "its agent has not ticked")
	require.Len(t, w.published("workspace.%.expiry_warning"), 1, "not of another agent's")
}

func TestPatienceComesFromTheAgentConfiguration(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.begin(0)()
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
	w.configure(agent.Settings{UnschedulablePatience: lasting(30 * time.Second)})
	a.tick(time.Minute + time.Second)
	require.Equal(t, actualstate.Failed, w.get(ide.ID).ActualState, "patience was shortened")
	w.configure(agent.Settings{UnschedulablePatience: lasting(0)})
	a.tick(1000 * time.Hour)
	require.Equal(t, actualstate.Starting, w.get(ide.ID).ActualState, "there is patience for ever")
}
