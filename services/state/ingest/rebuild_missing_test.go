package ingest_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/workspace"
)

// A rebuild keeps values from expired messages.
func TestRebuildKeepsValuesOfExpiredMessages(t *testing.T) {
	t.Parallel()
	checkExpiredMessages(t, seed(t))
}

func checkExpiredMessages(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	c := w.randomHistory(seed)
	c.lastRevision = map[uuid.UUID]int{}
	c.run(150)
	for range 3 {
		for _, name := range []string{topology.StreamObserved, topology.StreamApplied} {
			stream, err := w.js.Stream(t.Context(), name)
			require.NoError(t, err)
			state := stream.CachedInfo().State
			require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(state.FirstSeq+state.Msgs/3)))
		}
		w.requireIdentical("a third of the messages expired")
		c.run(30)
		w.requireIdentical("after more messages")
	}
	for _, name := range []string{topology.StreamObserved, topology.StreamApplied} {
		stream, err := w.js.Stream(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, stream.Purge(t.Context()))
	}
	w.requireIdentical("after a purge")
}

// Dispatcher events from before the first retained message are combined with later events.
func TestTerminationInExpiredMessagesIsKept(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	failing, repeated, waiting := w.workspace("failing"), w.workspace("repeated"), w.workspace("waiting")
	a := w.agent(7)
	for _, ws := range []workspace.Workspace{failing, repeated, waiting} {
		a.applies(ws.ID, 1)
	}
	w.ingestAll()
	for _, ws := range []workspace.Workspace{failing, repeated} {
		w.desire(ws.ID, workspace.DesiredTerminated)
		a.reports("terminating", ws.ID, 2, map[string]any{})
	}
	w.expire(topology.StreamApplied, 6)
	a.fails(failing.ID, 2)
	a.applies(repeated.ID, 2)
	w.ingestAll()
	require.Equal(t, "in_progress", string(w.get(failing.ID).Termination))
	require.Equal(t, "error", string(w.get(failing.ID).ActualState))
	require.Equal(t, "terminating", string(w.get(repeated.ID).ActualState))
	w.requireIdentical("terminations that began in expired messages")

	// A termination requested later cannot have begun in missing messages.
	w.change(waiting.ID, func(was workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
		return was.SetDesired(workspace.DesiredTerminated, 9, time.Now().Add(time.Hour))
	})
	a.ticks()
	w.ingestAll()
	before := w.dump()
	w.exec(`update workspaces set termination = 'in_progress'`)
	require.Contains(
		t,
		strings.Join(w.rebuild(false, 0).Differences, "\n"),
		waiting.ID.String()+`: termination is "in_progress", the streams give "none"`,
	)
	require.Equal(t, before, w.dump())
}

// A late event stays stale in a rebuild, even if the newer event has expired.
func TestLateReportStaysLateInARebuild(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ws, deleted := w.workspace("w"), w.workspace("deleted")
	a := w.agent(7)
	a.reportsDeployment(running(ws, 50))
	a.reportsDeployment(deletedDeployment(deleted, 60))
	w.expire(topology.StreamObserved, 3)
	a.reportsDeployment(deletedDeployment(ws, 40))
	a.reportsDeployment(running(deleted, 60))
	a.ticks()
	w.ingestAll()
	require.Equal(t, "running", string(w.get(ws.ID).ActualState))
	w.requireIdentical("an older version came late")

	before := w.dump()
	w.exec(`update observed_objects set resource_version = 1000 where name = 'w'`)
	require.Len(t, w.rebuild(false, 0).Differences, 1, "the row is not what was observed")
	require.Equal(t, before, w.dump())
}

func TestTerminatedWorkspaceStaysTerminated(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ws := w.workspace("w")
	a := w.agent(7)
	a.reportsDeployment(running(ws, 5))
	w.desire(ws.ID, workspace.DesiredTerminated)
	a.reports("terminated", ws.ID, 2, map[string]any{})
	w.ingestAll()
	// The restored stream does not contain the terminated event.
	stream, err := w.js.Stream(t.Context(), topology.StreamApplied)
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(t.Context(), 1))
	before := w.dump()
	w.rebuild(false, 0)
	require.Equal(t, before, w.dump())
}

// After a NATS restore, messages are missing. The requested full resyncs recover them.
func TestRebuildAfterStreamsWereRestored(t *testing.T) {
	t.Parallel()
	checkRestoredStreams(t, seed(t))
}

func checkRestoredStreams(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	c := w.randomHistory(seed)
	c.run(80)
	restore := w.snapshot()
	c.run(40)
	restore()
	_, err := w.tryRebuild(t.Context(), true, 0, noProgress)
	require.True(t, fault.Is(err, errcode.Conflict), "%v", err)
	w.ingestAll()
	for _, a := range c.agents {
		var members []workspace.Workspace
		for _, ws := range c.workspaces {
			if ws.AgentID == a.id {
				members = append(members, ws)
			}
		}
		version := c.versions[a.id] + 10
		c.versions[a.id] = version
		a.begins("restored", "", len(members), version)
		for _, ws := range members {
			a.reportsDeployment(member(running(ws, version), "restored"))
			a.replicaSet(ws, version)
			revision := max(1, int(w.get(ws.ID).AppliedRevision))
			if w.get(ws.ID).DesiredState == workspace.DesiredTerminated {
				a.reports("terminating", ws.ID, max(revision, int(w.get(ws.ID).DesiredRevision)), map[string]any{})
			} else {
				a.applies(ws.ID, max(revision, int(w.get(ws.ID).DesiredRevision)))
			}
		}
		a.ends("restored", len(members))
		a.ticks()
	}
	w.ingestAll()
	w.requireIdentical("after the full resyncs")
}

// A dispatcher does not repeat applied events of a workspace with desired state terminated.
func TestLostAppliedEventsAreKeptAfterARestore(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	again, leaving := w.workspace("again"), w.workspace("leaving")
	a := w.agent(7)
	a.applies(again.ID, 1)
	w.ingestAll()
	restore := w.snapshot()
	a.now = a.now.Add(time.Minute)
	a.applies(again.ID, 1)
	a.fails(again.ID, 2)
	w.desire(leaving.ID, workspace.DesiredTerminated)
	a.reports("terminating", leaving.ID, 2, map[string]any{})
	w.ingestAll()
	restore()
	w.ingestAll()
	w.desire(again.ID, workspace.DesiredTerminated)
	a.reports("terminating", again.ID, int(w.get(again.ID).DesiredRevision), map[string]any{})
	a.fails(leaving.ID, 2)
	w.ingestAll()
	require.Equal(t, a.now, w.get(again.ID).AppliedAt)
	require.Equal(t, "in_progress", string(w.get(leaving.ID).Termination))
	w.requireIdentical("lost applied events are kept")
}

// A deleted object keeps its epoch, even if epochs began in messages that a restored stream lacks.
func TestDeletedObjectsKeepTheirEpochAfterARestore(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ws := w.workspace("w")
	a := w.agent(7)
	a.reportsDeployment(running(ws, 166))
	w.ingestAll()
	restore := w.snapshot()
	a.reportsDeployment(running(ws, 203))
	a.begins("restored-cluster", uuid.NewString()+"/deployment:5000", 0, 300)
	a.ends("restored-cluster", 0)
	a.cluster = "another"
	a.begins("other-cluster", "", 0, 10)
	a.ends("other-cluster", 0)
	w.ingestAll()
	restore()
	w.ingestAll()
	a.begins("requested-after-restore", "", 0, 20)
	a.ends("requested-after-restore", 0)
	w.ingestAll()
	require.Equal(t, object{Version: "203", Epoch: 1, Deleted: true}, w.object("w"))
	w.requireIdentical("two epochs are lost")
}

// expire consumes all messages, then purges a stream up to a sequence.
func (w *fixture) expire(stream string, before uint64) {
	w.t.Helper()
	w.ingestAll()
	s, err := w.js.Stream(w.t.Context(), stream)
	require.NoError(w.t, err)
	require.NoError(w.t, s.Purge(w.t.Context(), jetstream.WithPurgeSequence(before)))
}

// snapshot copies the NATS store. It returns a function that restores it.
func (w *fixture) snapshot() (restore func()) {
	w.t.Helper()
	copied := filepath.Join(w.t.TempDir(), "copy")
	require.NoError(w.t, w.server.Snapshot(copied))
	w.reconnected()
	return func() {
		w.t.Helper()
		require.NoError(w.t, w.server.Restore(copied))
		w.reconnected()
	}
}

func (w *fixture) reconnected() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		_, err := w.js.Conn().RTT()
		return err == nil
	}, timeout, 5*time.Millisecond)
}
