package ingest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/workspace"
)

// endedResync publishes a resync r1 that lists here and lacks lost, and consumes it without a judge.
func (a *fakeAgent) endedResync() (here, lost workspace.Workspace) {
	w := a.fixture
	w.t.Helper()
	here, lost = w.workspace("here"), w.workspace("lost")
	for _, ws := range []workspace.Workspace{here, lost} {
		a.reportsDeployment(running(ws, 8))
		a.applies(ws.ID, 1)
	}
	a.now = start().Add(time.Hour)
	a.begins("r1", "", 1, 9)
	a.reportsDeployment(member(running(here, 8), "r1"))
	a.ends("r1", 1)
	w.read()
	require.Equal(w.t, "open", w.outcome("r1"))
	require.False(w.t, w.object("lost").Deleted)
	require.Empty(w.t, w.causes(lost.ID))
	return here, lost
}

// compare compares the only ended resync, and stores nothing.
func (w *fixture) compare() *ingest.Judgement {
	w.t.Helper()
	var j *ingest.Judgement
	w.tx(func(tx pgx.Tx) error {
		s := w.ingestStores.In(tx)
		ended, err := s.EndedResyncs(w.t.Context())
		require.NoError(w.t, err)
		require.Len(w.t, ended, 1)
		j, err = s.Judge(w.t.Context(), ended[0])
		return err
	})
	return j
}

// storeStep stores one step of a judgement. It returns false if the resync is already judged.
func (w *fixture) storeStep(step ingest.JudgementStep) bool {
	w.t.Helper()
	stored := false
	w.tx(func(tx pgx.Tx) error {
		var err error
		stored, err = w.ingest().StoreJudgement(w.t.Context(), w.ingestStores.In(tx), step)
		return err
	})
	return stored
}

// judgeAll judges all ended resyncs.
func (w *fixture) judgeAll() {
	w.t.Helper()
	require.NoError(w.t, w.judge().All(w.t.Context(), w.pool))
}

func TestNextJudgeContinuesAfterACrash(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, gone := w.agent(7), w.workspace("gone")
	const pods = 450
	for n := range pods {
		a.pod(gone, fmt.Sprintf("gone-%d", n), 7, func(p *events.ObservedPod) { p.Object.Verb = events.VerbDeleted })
	}
	_, lost := a.endedResync()
	steps := w.compare().Steps()
	require.Len(t, steps, 3, "%d deleted pods", pods)
	require.True(t, w.storeStep(steps[0]))
	require.Equal(t, "open", w.outcome("r1"), "it is complete when all steps are stored")
	require.Equal(t, []string{"redispatch running"}, w.causes(lost.ID))
	left := w.count(`select count(*) from observed_objects where kind = 'pod'`)
	require.Positive(t, left)
	require.Less(t, left, pods)

	w.ingestAll()
	require.Equal(t, "complete", w.outcome("r1"))
	require.True(t, w.object("lost").Deleted)
	require.Zero(t, w.count(`select count(*) from observed_objects where kind = 'pod'`))
	require.Equal(t, []string{"redispatch running"}, w.causes(lost.ID), "no finding counts twice")
	require.False(t, w.storeStep(steps[1]), "the first judge is too late")
}

func TestReplicasJudgeAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	here, lost := w.agent(7).endedResync()
	var replicas errgroup.Group
	for range 4 {
		replicas.Go(func() error { return w.judge().All(t.Context(), w.pool) })
	}
	require.NoError(t, replicas.Wait())
	require.Equal(t, "complete", w.outcome("r1"))
	require.Equal(t, []string{"redispatch running"}, w.causes(lost.ID))
	require.Empty(t, w.causes(here.ID))
}

func TestChangesBeforeTheJudgementIsStored(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  func(a *fakeAgent, lost workspace.Workspace)
		object  object
		causes  []string
		outcome string
	}{
		"a version above the list": {
			func(a *fakeAgent, lost workspace.Workspace) { a.reportsDeployment(running(lost, 10)) },
			object{Version: "10", Epoch: 1},
			[]string{},
			"open",
		},
		"a deletion above the list": {
			func(a *fakeAgent, lost workspace.Workspace) { a.reportsDeployment(deletedDeployment(lost, 10)) },
			object{Version: "10", Epoch: 1, Deleted: true},
			[]string{"redispatch running"},
			"open",
		},
		"a late version": {
			func(a *fakeAgent, lost workspace.Workspace) { a.reportsDeployment(running(lost, 9)) },
			object{Version: "9", Epoch: 1},
			[]string{},
			"complete",
		},
		"a late member": {
			func(a *fakeAgent, lost workspace.Workspace) { a.reportsDeployment(member(running(lost, 8), "r1")) },
			object{Version: "8", Epoch: 1, Deleted: true},
			[]string{"redispatch running"},
			"complete",
		},
		"the next resync": {
			func(a *fakeAgent, _ workspace.Workspace) { a.begins("r2", "", 1, 10) },
			object{Version: "8", Epoch: 1, Deleted: true},
			[]string{"redispatch running"},
			"complete",
		},
		"a resync of another cluster": {
			func(a *fakeAgent, _ workspace.Workspace) { a.cluster = "cluster-2"; a.begins("r2", "", 1, 3) },
			object{Version: "8", Epoch: 1, Deleted: true},
			[]string{"redispatch running"},
			"complete",
		},
		"another apply": {
			func(a *fakeAgent, lost workspace.Workspace) {
				a.now = a.now.Add(time.Minute)
				a.applies(lost.ID, 1)
			},
			object{Version: "8", Epoch: 1, Deleted: true},
			[]string{"redispatch running"},
			"open",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			here, lost := a.endedResync()
			judgement := w.compare()
			test.change(a, lost)
			w.read()
			require.Equal(t, test.outcome, w.outcome("r1"), "the batch judges only if it could change the result")
			for _, step := range judgement.Steps() {
				require.Equal(t, test.outcome == "open", w.storeStep(step))
			}
			require.Equal(t, "complete", w.outcome("r1"))
			require.Equal(t, test.object, w.object("lost"))
			require.Equal(t, test.causes, w.causes(lost.ID))
			require.Empty(t, w.causes(here.ID))
			w.requireIdentical("after the judgement")
		})
	}
}

func TestDeletedObjectThatReturnsIsNotRemoved(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	deletedPod := func(p *events.ObservedPod) { p.Object.Verb = events.VerbDeleted }
	a.pod(ide, "deleted", 7, deletedPod)
	a.pod(ide, "again", 7, deletedPod)
	a.endedResync()
	judgement := w.compare()
	a.pod(ide, "again", 20, deletedPod)
	w.read()
	for _, step := range judgement.Steps() {
		require.True(t, w.storeStep(step))
	}
	require.Equal(t, object{Version: "20", Epoch: 1, Deleted: true}, w.object("again"))
	require.Zero(t, w.count(`select count(*) from observed_objects where name = 'deleted'`))
	w.requireIdentical("after the judgement")
}

func TestRebuildJudgesEndedResyncsFirst(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	_, lost := w.agent(7).endedResync()
	w.requireIdentical("before the judgement")
	require.Equal(t, "complete", w.outcome("r1"))
	require.Equal(t, []string{"redispatch running"}, w.causes(lost.ID), "the live tables are judged")
}

func TestIncompleteResyncIsReportedOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	a.begins("r1", "", 2, 9)
	a.ends("r1", 2)
	w.read()
	require.Empty(t, w.logs.matching("incomplete"))
	w.judgeAll()
	w.judgeAll()
	require.Equal(t, "incomplete", w.outcome("r1"))
	require.Len(t, w.logs.matching("incomplete"), 1)
}

func TestMembersAfterTheEndDoNotCount(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, here := w.agent(7), w.workspace("here")
	a.begins("r1", "", 1, 9)
	a.ends("r1", 1)
	a.reportsDeployment(member(running(here, 10), "r1"))
	w.read()
	require.Equal(t, "open", w.outcome("r1"), "the version is above the list")
	w.judgeAll()
	require.Equal(t, "incomplete", w.outcome("r1"))
	require.Equal(t, 0, w.count(`select received from resyncs`))
	require.Positive(t, w.sequence(w.pool, topology.StreamObserved))
}
