package ingest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestActualStateFollowsTheCluster(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide, other := w.agent(7), w.workspace("ide"), w.workspace("other")
	defer w.startConsumers(1)() // each event by itself: no state is skipped
	starting := running(ide, 10)
	starting.progress, starting.available = "ReplicaSetUpdated", 0
	a.now = start().Add(time.Minute)
	a.reportsDeployment(starting)
	a.reportsDeployment(running(ide, 11))
	a.applies(ide.ID, 1)
	w.caughtUp()
	got := w.get(ide.ID)
	require.Equal(t, actualstate.Running, got.ActualState)
	require.Equal(t, a.now, got.ActualStateChangedAt)
	require.EqualValues(t, 1, got.AppliedRevision)
	require.Equal(t, []string{"starting", "running"}, w.states(ide.ID))
	require.Equal(t, actualstate.CreationRequested, w.get(other.ID).ActualState, "without any event")

	w.desire(ide.ID, workspace.DesiredStopped)
	stopping := running(ide, 12)
	stopping.spec = 0
	a.reportsDeployment(stopping)
	stopping.version, stopping.available = 13, 0
	a.reportsDeployment(stopping)
	w.caughtUp()
	require.Equal(t, []string{"starting", "running", "stopping", "stopped"}, w.states(ide.ID))
	for _, e := range w.published("workspace.%.state_changed") {
		require.NotContains(t, e, "unexpected")
	}
	require.Len(t, w.published("desired.7."+ide.ID.String()), 2)
}

func TestReorderedAndRepeatedReports(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"one by one": 1, "in one batch": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, ide := w.agent(7), w.workspace("ide")
			stopped := deploymentReport{name: "ide", workspace: ide.ID, version: 9, revision: "1"}
			up, late, newer := running(ide, 8), running(ide, 7), running(ide, 10)
			for _, s := range []deploymentReport{up, stopped, up, stopped, late, newer, stopped, newer, stopped} {
				a.reportsDeployment(s)
			}
			defer w.startConsumers(batch)()
			w.caughtUp()
			require.Equal(t, "10", w.object("ide").Version)
			require.Equal(t, actualstate.Running, w.get(ide.ID).ActualState)
		})
	}
}

func TestDeletionWinsAmongEqualVersions(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"one by one": 1, "in one batch": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, ide := w.agent(7), w.workspace("ide")
			a.reportsDeployment(running(ide, 8))
			a.reportsDeployment(deletedDeployment(ide, 8))
			a.reportsDeployment(running(ide, 8))
			a.begins("r1", "", 1, 8)
			a.reportsDeployment(member(running(ide, 8), "r1"))
			a.ends("r1", 1)
			defer w.startConsumers(batch)()
			w.caughtUp()
			require.Equal(t, object{Version: "8", Epoch: 1, Deleted: true}, w.object("ide"))
			require.Equal(t, "complete", w.outcome("r1"), "an older version is a member, too")
			a.reportsDeployment(running(ide, 9))
			w.caughtUp()
			require.Equal(t, object{Version: "9", Epoch: 1}, w.object("ide"))
		})
	}
}

func TestDeletedDeploymentIsAppliedAgainAtOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide, leaving := w.agent(7), w.workspace("ide"), w.workspace("leaving")
	defer w.startConsumers(0)()
	for _, ws := range []workspace.Workspace{ide, leaving} {
		a.applies(ws.ID, 1)
		a.reportsDeployment(running(ws, 8))
	}
	w.caughtUp()
	w.desire(leaving.ID, workspace.DesiredTerminated)
	a.reportsDeployment(deletedDeployment(ide, 9))
	a.reportsDeployment(deletedDeployment(leaving, 9))
	a.reportsDeployment(deletedDeployment(ide, 9))
	w.caughtUp()
	require.Equal(t, []string{"redispatch running"}, w.causes(ide.ID))
	require.EqualValues(t, 2, w.get(ide.ID).DesiredRevision)
	require.Len(t, w.published("desired.7."+ide.ID.String()), 2)
	require.Equal(t, []string{"user terminated"}, w.causes(leaving.ID), "a terminated workspace is not applied again")
	require.Equal(t, actualstate.Terminating, w.get(leaving.ID).ActualState)
}

func TestRestartFromRequestToRunning(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(0)()
	a.applies(ide.ID, 1)
	a.reportsDeployment(running(ide, 8))
	w.caughtUp()
	w.desire(ide.ID, workspace.DesiredRestartRequested)
	stopped := deploymentReport{name: "ide", workspace: ide.ID, version: 9, revision: "1"}
	a.reportsDeployment(stopped) // stopped by another client, not by the restart
	w.caughtUp()
	require.Equal(t, workspace.DesiredRestartRequested, w.get(ide.ID).DesiredState)
	stopped.version, stopped.revision = 10, "2"
	a.reportsDeployment(stopped)
	w.caughtUp()
	require.Equal(t, workspace.DesiredRestartRequested, w.get(ide.ID).DesiredState, "the revision is not applied yet")
	a.applies(ide.ID, 2)
	w.caughtUp()
	require.Equal(t, workspace.DesiredRunning, w.get(ide.ID).DesiredState)
	require.Equal(t, []string{"user restart_requested", "restart_completed running"}, w.causes(ide.ID))
	desired := w.published("desired.7." + ide.ID.String())
	require.Equal(
		t,
		[]any{"running", "stopped", "running"},
		[]any{desired[0]["target"], desired[1]["target"], desired[2]["target"]},
	)
}

func TestTerminationReportedByTheDispatcher(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(1)()
	a.applies(ide.ID, 1)
	a.reportsDeployment(running(ide, 8))
	w.caughtUp()
	w.desire(ide.ID, workspace.DesiredTerminated)
	a.reports("terminating", ide.ID, 2, nil)
	a.fails(ide.ID, 2)
	a.fails(ide.ID, 1) // late
	a.reports("terminating", ide.ID, 2, nil)
	a.reports("terminated", ide.ID, 2, nil)
	w.caughtUp()
	a.reportsDeployment(deletedDeployment(ide, 9))
	a.fails(ide.ID, 2)
	w.caughtUp()
	require.Equal(t, []string{"running", "terminating", "error", "terminating", "terminated"}, w.states(ide.ID))
	published := w.published("workspace.4." + ide.ID.String() + ".state_changed")
	require.Equal(t, "Forbidden", published[2]["reason"])
	require.Equal(t, "the cluster forbids it", published[2]["message"])
	again := w.workspace("ide")
	require.NotEqual(t, ide.ID, again.ID, "the name is free again")
}

func TestPodTimeoutExpiresOnATick(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(0)()
	starting := deploymentReport{
		name:      "ide",
		workspace: ide.ID,
		version:   8,
		spec:      1,
		revision:  "1",
		progress:  "ReplicaSetUpdated",
		template:  1,
	}
	a.ticks()
	a.reportsDeployment(starting)
	a.replicaSet(ide, 9)
	since := start()
	a.pod(ide, "ide-1", 10, func(p *events.ObservedPod) {
		p.Conditions = []events.Condition{
			{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "no room", LastTransitionTime: &since},
		}
	})
	w.caughtUp()
	require.Equal(t, actualstate.Starting, w.get(ide.ID).ActualState)
	require.Equal(t, start().Add(5*time.Minute), w.get(ide.ID).RecomputeAt)
	a.now = start().Add(4 * time.Minute)
	a.ticks()
	w.caughtUp()
	require.Equal(t, actualstate.Starting, w.get(ide.ID).ActualState)
	a.now = start().Add(5 * time.Minute)
	a.ticks()
	w.caughtUp()
	got := w.get(ide.ID)
	require.Equal(t, actualstate.Failed, got.ActualState)
	require.Equal(t, "Unschedulable", got.Reason)
	require.Equal(t, a.now, got.ActualStateChangedAt, "by the agent's clock")
	a.pod(ide, "ide-1", 11, func(*events.ObservedPod) {})
	w.caughtUp()
	// If the pod is in a later batch than its Deployment, there is another message about the same state.
	require.Equal(t, []string{"starting", "failed", "starting"}, slices.Compact(w.states(ide.ID)))
	var ticked, seen time.Time
	require.NoError(
		t,
		w.pool.QueryRow(t.Context(), `select ticked_at, last_seen_at from agents where id = 7`).Scan(&ticked, &seen),
	)
	require.Equal(t, a.now, ticked.UTC())
	require.WithinDuration(t, time.Now(), seen, timeout)
}

func TestOrphanIsPublishedOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	defer w.startConsumers(1)()
	unknown := uuid.Must(uuid.NewV7())
	a.reportsDeployment(deploymentReport{name: "left", workspace: unknown, version: 8, spec: 1})
	a.reportsDeployment(deploymentReport{name: "left", workspace: unknown, version: 9, spec: 1})
	a.reportsDeployment(deploymentReport{name: "left", workspace: unknown, version: 10, deleted: true})
	a.reportsDeployment(deploymentReport{name: "left", workspace: unknown, version: 11, uid: "another", spec: 1})
	a.reportsDeployment(deploymentReport{name: "nobody's", version: 12, spec: 1})
	meta := a.meta("ns", "odd", 13, false, "", "no uuid")
	a.observeDeployment(events.ObservedWorkload{Object: meta, Kind: events.WorkloadKindDeployment})
	w.caughtUp()
	orphans := w.published("workspace.0.%.orphaned")
	require.Len(t, orphans, 3)
	require.Equal(t, map[string]any{
		"workspace_id": unknown.String(), "name": "left", "project_id": 0.0, "agent_id": 7.0, "namespace": "ws-7-left",
		"object": map[string]any{"api_version": "apps/v1", "kind": "Deployment", "name": "left", "namespace": "ws-7-left"},
	}, orphans[0])
	require.Equal(t, orphans[0], orphans[1], "a recreated Deployment is a new orphan")
	require.Equal(t, "no uuid", orphans[2]["workspace_id"])
	require.Empty(t, w.deadLetterReasons())
}

func TestDispatcherAheadOfRestoredDatabase(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	a.applies(ide.ID, 41)
	w.ingestAll()
	require.EqualValues(t, 42, w.get(ide.ID).DesiredRevision)
	require.Equal(t, []string{"redispatch running"}, w.causes(ide.ID))
}
