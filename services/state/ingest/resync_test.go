package ingest_test

import (
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestCompleteResyncMarksAbsentObjectsDeleted(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, here, lost, never, pending, leaving := w.agent(
		7,
	), w.workspace(
		"here",
	), w.workspace(
		"lost",
	), w.workspace(
		"never",
	), w.workspace(
		"pending",
	), w.workspace(
		"leaving",
	)
	defer w.startConsumers(0)()
	for _, ws := range []workspace.Workspace{here, lost, leaving} {
		a.reportsDeployment(running(ws, 8))
	}
	for _, ws := range []workspace.Workspace{here, lost, never, leaving} {
		a.applies(ws.ID, 1)
	}
	w.caughtUp()
	w.desire(leaving.ID, workspace.DesiredTerminated)
	a.now = start().Add(time.Hour)
	a.begins("r1", "", 1, 9)
	a.reportsDeployment(member(running(here, 8), "r1"))
	a.ends("r1", 1)
	w.caughtUp()
	require.Equal(t, "complete", w.outcome("r1"))
	require.Equal(t, object{Version: "8", Epoch: 1}, w.object("here"))
	require.True(t, w.object("lost").Deleted)
	require.Empty(t, w.causes(here.ID))
	require.Equal(t, []string{"redispatch running"}, w.causes(lost.ID))
	require.Equal(t, []string{"redispatch running"}, w.causes(never.ID))
	require.Empty(t, w.causes(pending.ID), "an apply is pending")
	require.Equal(
		t,
		[]string{"user terminated", "redispatch terminated"},
		w.causes(leaving.ID),
		"the termination is requested again",
	)
	require.Equal(t, actualstate.Unknown, w.get(lost.ID).ActualState)
	require.Equal(t, actualstate.CreationRequested, w.get(never.ID).ActualState)

	a.ends("r1", 1)
	a.begins("r1", "", 1, 9)
	a.ends("r1", 1)
	w.caughtUp()
	require.Len(t, w.causes(lost.ID), 1, "a duplicate end event is ignored")
}

func TestObjectCreatedDuringAResyncIsNotAbsent(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, old, created := w.agent(7), w.workspace("old"), w.workspace("created")
	a.reportsDeployment(running(old, 8))
	a.begins("r1", "", 1, 9)
	a.reportsDeployment(running(created, 10)) // created after the list
	a.reportsDeployment(member(running(old, 8), "r1"))
	a.ends("r1", 1)
	a.applies(created.ID, 1)
	w.ingestAll()
	require.Equal(t, "complete", w.outcome("r1"))
	require.Equal(t, object{Version: "10", Epoch: 1}, w.object("created"))
	require.Equal(t, actualstate.Running, w.get(created.ID).ActualState)
	require.Empty(t, w.causes(created.ID))
}

func TestIncompleteResyncIsIgnored(t *testing.T) {
	t.Parallel()
	for name, resync := range map[string]func(a *fakeAgent, here, lost workspace.Workspace){
		"a member is missing": func(a *fakeAgent, here, _ workspace.Workspace) {
			a.begins("r1", "", 2, 9)
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.ends("r1", 2)
		},
		"one member is duplicated, another is missing": func(a *fakeAgent, here, _ workspace.Workspace) {
			a.begins("r1", "", 2, 9)
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.ends("r1", 2)
		},
		"the end event has a lower count": func(a *fakeAgent, here, _ workspace.Workspace) {
			a.begins("r1", "", 2, 9)
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.ends("r1", 1)
		},
		"another began before its end": func(a *fakeAgent, here, _ workspace.Workspace) {
			a.begins("r1", "", 1, 9)
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.begins("r2", "", 1, 9)
			a.ends("r1", 1)
		},
		"it was of another cluster": func(a *fakeAgent, here, _ workspace.Workspace) {
			a.begins("r1", "", 1, 9)
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.cluster = "cluster-0"
			a.ends("r1", 1)
		},
		"it never began": func(a *fakeAgent, here, _ workspace.Workspace) {
			a.reportsDeployment(member(running(here, 8), "r1"))
			a.ends("r1", 1)
		},
	} {
		for mode, batch := range map[string]int{"one by one": 1, "in one batch": 0} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				w := newFixture(t)
				a, here, lost := w.agent(7), w.workspace("here"), w.workspace("lost")
				a.applies(lost.ID, 1)
				a.reportsDeployment(running(here, 7))
				a.reportsDeployment(running(lost, 7))
				resync(a, here, lost)
				stop := w.startConsumers(batch)
				w.caughtUp()
				stop()
				require.False(t, w.object("lost").Deleted)
				require.Empty(t, w.causes(lost.ID))
				var complete int
				require.NoError(
					t,
					w.pool.QueryRow(t.Context(), `select count(*) from resyncs where outcome = 'complete'`).Scan(&complete),
				)
				require.Zero(t, complete)
			})
		}
	}
}

func TestAgentLearnsHowFarItsObservationsAreStored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	control, err := w.js.Stream(t.Context(), topology.StreamControl)
	require.NoError(t, err)
	defer w.startConsumers(0)()
	ask := func(subject string) {
		w.send(&natsgo.Msg{Subject: subject, Header: natsgo.Header{topology.HeaderReportRead: {"1"}}, Data: []byte("{}")})
	}
	ask(cell.ObservedWorkload(7, "deployment", "ns", "web")) // state ignores it, and reports that it has read it
	ask(cell.ObservedTick(8))                                // it cannot be decoded
	w.agent(9).ticks()                                       // it does not ask
	w.caughtUp()
	var reported *jetstream.RawStreamMsg
	require.Eventually(t, func() bool {
		reported, err = control.GetLastMsgForSubject(t.Context(), cell.ControlRead(7))
		return err == nil
	}, timeout, time.Millisecond)
	e, err := event.Decode(reported.Header, reported.Data)
	require.NoError(t, err)
	read, err := events.Decode[events.ObservationsRead](e.Data())
	require.NoError(t, err)
	require.Positive(t, read.Sequence)
	for _, other := range []int64{8, 9} {
		_, err = control.GetLastMsgForSubject(t.Context(), cell.ControlRead(other))
		require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	}
}

func TestChangedMembersCountAsReceived(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, changed, deleted := w.agent(7), w.workspace("changed"), w.workspace("deleted")
	a.begins("r1", "", 2, 9)
	a.reportsDeployment(running(changed, 12))
	a.reportsDeployment(deletedDeployment(deleted, 13))
	a.reportsDeployment(member(running(changed, 8), "r1"))
	a.reportsDeployment(member(running(deleted, 8), "r1"))
	a.ends("r1", 2)
	w.ingestAll()
	require.Equal(t, "complete", w.outcome("r1"))
	require.Equal(t, object{Version: "12", Epoch: 1}, w.object("changed"))
	require.Equal(t, object{Version: "13", Epoch: 1, Deleted: true}, w.object("deleted"))
}

func TestNextResyncRemovesDeletedObjects(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	a.reportsDeployment(running(ide, 8))
	a.replicaSet(ide, 8)
	a.pod(ide, "ide-1", 9, func(p *events.ObservedPod) { p.Object.Verb = "deleted" })
	a.pod(ide, "ide-2", 20, func(p *events.ObservedPod) { p.Object.Verb = "deleted" })
	a.begins("r1", "", 1, 10)
	a.reportsDeployment(member(running(ide, 8), "r1"))
	a.ends("r1", 1)
	w.ingestAll()
	var left []string
	require.NoError(
		t,
		w.pool.QueryRow(t.Context(), `select array_agg(name order by name) from observed_objects`).Scan(&left),
	)
	require.Equal(
		t,
		[]string{"ide", "ide-2", "ide-h"},
		left,
		"ide-1 is removed; ide-2 was deleted after the list; the ReplicaSet's kind was not listed",
	)
}

func TestRecreatedClusterBeginsANewEpoch(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"one by one": 1, "in one batch": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, ide, lost := w.agent(7), w.workspace("ide"), w.workspace("lost")
			a.applies(ide.ID, 1)
			a.applies(lost.ID, 1)
			a.reportsDeployment(running(ide, 1000))
			a.reportsDeployment(running(lost, 1001))
			a.cluster = "cluster-2"
			// An event of the new cluster before its resync.
			a.reportsDeployment(deploymentReport{name: "ide", workspace: ide.ID, version: 2000, revision: "1"})
			a.now = start().Add(time.Hour)
			a.begins("r1", "", 1, 9)
			stopped := deploymentReport{name: "ide", workspace: ide.ID, version: 8, revision: "1"}
			a.reportsDeployment(member(stopped, "r1"))
			a.ends("r1", 1)
			a.cluster = "cluster-1"
			a.reportsDeployment(running(ide, 1002)) // late event of the old cluster
			a.ticks()
			stop := w.startConsumers(batch)
			w.caughtUp()
			stop()
			require.Equal(t, object{Version: "8", Epoch: 2}, w.object("ide"))
			require.Equal(t, object{Version: "1001", Epoch: 1, Deleted: true}, w.object("lost"))
			require.Equal(t, actualstate.Stopped, w.get(ide.ID).ActualState)
			require.Equal(t, []string{"redispatch running"}, w.causes(lost.ID))
			require.Empty(t, w.resyncNonces("new_epoch"), "the new cluster just sent a full resync")
		})
	}
}

func TestRestoredClusterBeginsANewEpochAfterASecondResync(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"one by one": 1, "in one batch": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, ide := w.agent(7), w.workspace("ide")
			a.reportsDeployment(running(ide, 1000))
			stopped := deploymentReport{name: "ide", workspace: ide.ID, version: 8, revision: "1"}
			a.begins("r1", "", 1, 9)
			a.reportsDeployment(member(stopped, "r1"))
			a.ends("r1", 1)
			defer w.startConsumers(batch)()
			w.caughtUp()
			require.Equal(
				t,
				object{Version: "1000", Epoch: 1},
				w.object("ide"),
				"it may be a late event of a paused watcher",
			)
			asked := w.resyncNonces("new_epoch")
			require.Len(t, asked, 1)

			a.begins("r2", asked[0], 1, 10)
			a.reportsDeployment(member(stopped, "r2"))
			a.ends("r2", 1)
			w.caughtUp()
			require.Equal(t, object{Version: "8", Epoch: 2}, w.object("ide"))
			require.Equal(t, actualstate.Stopped, w.get(ide.ID).ActualState)
			require.Len(t, w.resyncNonces("new_epoch"), 1)
		})
	}
}

func TestReadingTheStreamAgainChangesNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	stopped := deploymentReport{name: "ide", workspace: ide.ID, version: 8, revision: "1"}
	a.begins("r1", "", 1, 1000)
	a.reportsDeployment(member(running(ide, 1000), "r1"))
	a.ends("r1", 1)
	a.cluster = "cluster-2"
	a.begins("r2", "", 1, 9)
	a.reportsDeployment(member(stopped, "r2"))
	a.ends("r2", 1)
	a.applies(ide.ID, 1)
	w.ingestAll()
	want, states := w.derivedRows(), w.states(ide.ID)
	require.Equal(t, object{Version: "8", Epoch: 2}, w.object("ide"))

	w.exec(`update stream_cursors set event_id = 'another incarnation'`)
	stop := w.startConsumers(0)
	require.Eventually(
		t,
		func() bool { return len(w.resyncNonces("restored_stream")) == 2 },
		timeout,
		2*time.Millisecond,
		"it is read again",
	)
	w.caughtUp()
	stop()
	require.Equal(t, want, w.derivedRows())
	require.Equal(t, states, w.states(ide.ID), "no event is published twice")
}

func TestLateResyncBeginsNoEpoch(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(0)()
	a.reportsDeployment(running(ide, 1000))
	a.begins("r1", "", 1, 999)
	w.caughtUp()
	nonce := w.resyncNonces("new_epoch")[0]
	a.reportsDeployment(running(ide, 1005)) // between the list and the begin event of r2
	a.begins("r2", nonce, 1, 1001)
	a.reportsDeployment(member(running(ide, 1000), "r2"))
	a.ends("r2", 1)
	a.begins("r3", "a nonce of another requester", 0, 1006)
	w.caughtUp()
	require.Equal(t, object{Version: "1005", Epoch: 1}, w.object("ide"))
	require.Equal(t, "complete", w.outcome("r2"))
	require.Len(t, w.resyncNonces("new_epoch"), 1)
}

func TestRestoredStreamRequestsResyncsOfAllAgents(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	w.exec(`insert into agents (id, project_id, name, token_hash, curve_public_key, revoked_at)
		values (10, 4, 'c', 'c', 'X', now())`)
	stop := w.startConsumers(0)
	a.reportsDeployment(running(ide, 8))
	w.caughtUp()
	require.Len(t, w.published("control.%.resync"), 2, "the first read of the stream also requests resyncs")
	restore := w.snapshot()
	a.reportsDeployment(running(ide, 9))
	w.caughtUp()
	stop()
	restore()
	stop = w.startConsumers(0)
	defer stop()
	require.Eventually(t, func() bool { return len(w.published("control.%.resync")) == 4 }, timeout, 2*time.Millisecond)
	w.caughtUp()
	require.Equal(t, "9", w.object("ide").Version, "a replay does not overwrite newer versions")
	nonces := w.resyncNonces("restored_stream")
	require.Len(t, nonces, 2)
	require.True(t, strings.HasSuffix(nonces[1], "/deployment:9"), "the nonce contains the highest known version")
	a.begins("r1", nonces[1], 0, 20)
	a.ends("r1", 0)
	w.caughtUp()
	require.True(t, w.object("ide").Deleted)
}
