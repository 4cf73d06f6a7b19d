package ingest_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/workspace"
)

// observed returns the report of a Deployment of agent 7 with a workspace label.
func observed(name, uid, version, label string) *ingest.Observed {
	id, err := uuid.Parse(label)
	if err != nil {
		id = uuid.Nil
	}
	return &ingest.Observed{
		Sequence: 5, Stored: start(), AgentID: 7, ClusterUID: "cluster-7", At: start(), Label: label,
		Object: &ingest.Object{
			AgentID: 7, Kind: ingest.KindDeployment, Namespace: "ws-7-" + name, Name: name, UID: uid,
			ClusterUID: "cluster-7", ResourceVersion: version, WorkspaceID: id, Data: "{}",
		},
	}
}

func deleted(o *ingest.Observed) *ingest.Observed {
	o.Object.Deleted = true
	return o
}

func tick(at time.Time) *ingest.Observed {
	return tickOf(at, at)
}

// tickOf returns a tick of agent 7 with its time, which the stream stored at another time.
func tickOf(at, stored time.Time) *ingest.Observed {
	o := &ingest.Observed{AgentID: 7, ClusterUID: "cluster-7", At: at, Tick: true}
	o.StoredIn(5, stored)
	return o
}

func TestDeploymentsThatAreOrphans(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	others := ide
	others.ID, others.AgentID = uuid.New(), 8
	id, known, unknown := uuid.NewString(), ide.ID.String(), "some.body"
	type batch []*ingest.Observed
	first := func() batch { return batch{observed("o", "u", "8", id)} }
	for name, test := range map[string]struct {
		before, batch batch
		// inserted are the UIDs of new orphans, resolved those of Deployments that are orphans no more.
		inserted, resolved []string
	}{
		"an unknown workspace":        {batch: first(), inserted: []string{"u"}},
		"a label that is not a UUID":  {batch: batch{observed("o", "u", "8", unknown)}, inserted: []string{"u"}},
		"another agent's workspace":   {batch: batch{observed("o", "u", "8", others.ID.String())}, inserted: []string{"u"}},
		"no label":                    {batch: batch{observed("o", "u", "8", "")}},
		"a known workspace":           {batch: batch{observed("ide", "u", "8", known)}},
		"deleted at the first report": {batch: batch{deleted(observed("o", "u", "8", id))}},
		"created and deleted at once": {batch: batch{observed("o", "u", "8", id), deleted(observed("o", "u", "9", id))}},
		"a later version":             {before: first(), batch: batch{observed("o", "u", "9", id)}},
		"an older version":            {before: first(), batch: batch{deleted(observed("o", "u", "7", id))}},
		"deleted": {
			before: first(), batch: batch{deleted(observed("o", "u", "9", id))}, resolved: []string{"u"},
		},
		"recreated": {
			before: first(), batch: batch{observed("o", "v", "9", id)}, inserted: []string{"v"}, resolved: []string{"u"},
		},
		"relabelled, known now": {
			before: first(), batch: batch{observed("o", "u", "9", known)}, resolved: []string{"u"},
		},
		"relabelled, unknown again": {
			before: first(), batch: batch{observed("o", "u", "9", unknown)}, inserted: []string{"u"},
		},
		"a known workspace relabelled": {
			before: batch{observed("o", "u", "8", known)}, batch: batch{observed("o", "u", "9", id)}, inserted: []string{"u"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore(ide, others)
			require.NoError(t, newIngest().HandleObserved(t.Context(), s, test.before))
			s.orphans, s.deleted, s.messages = nil, nil, nil
			require.NoError(t, newIngest().HandleObserved(t.Context(), s, test.batch))
			var inserted, resolved []string
			for _, o := range s.orphans {
				inserted = append(inserted, o.UID)
				require.Contains(t, s.subjects(), cell.Workspace(0, o.Label, "orphaned"))
			}
			for _, c := range s.deleted {
				resolved = append(resolved, c.UIDBefore)
			}
			require.Equal(t, test.inserted, inserted)
			require.Equal(t, test.resolved, resolved)
		})
	}
}

func TestLostDeploymentIsAppliedAgain(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	ide.AppliedRevision = 1
	known, other := ide.ID.String(), uuid.NewString()
	for name, test := range map[string]struct {
		batch    []*ingest.Observed
		revision int64
	}{
		"deleted":     {[]*ingest.Observed{deleted(observed("ide", "u", "9", known))}, 2},
		"relabelled":  {[]*ingest.Observed{observed("ide", "u", "9", other)}, 2},
		"not deleted": {[]*ingest.Observed{observed("ide", "u", "9", known)}, 1},
		"recreated at once": {
			[]*ingest.Observed{deleted(observed("ide", "u", "9", known)), observed("ide", "v", "10", known)}, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore(ide)
			s.observation.Seen = true
			require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{observed("ide", "u", "8", known)}))
			require.NoError(t, newIngest().HandleObserved(t.Context(), s, test.batch))
			require.Equal(t, test.revision, s.workspaces[ide.ID].DesiredRevision)
		})
	}
}

func TestReportsOfAnotherClusterAreDropped(t *testing.T) {
	t.Parallel()
	s := newMemoryStore()
	late := observed("o", "u", "8", uuid.NewString())
	late.ClusterUID, late.Stored = "earlier", start().Add(time.Minute)
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{late}))
	require.Empty(t, s.objects)
	require.Equal(t, start().Add(time.Minute), s.clusters[7].LastSeenAt, "the watcher is alive")
	s.clusters[7].UID = ""
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{late}))
	require.Equal(t, "earlier", s.clusters[7].UID, "the first report names the cluster")
	require.Len(t, s.objects, 1)
}

func TestReportOfAnUnknownAgentIsRejected(t *testing.T) {
	t.Parallel()
	unknown := tick(start())
	unknown.AgentID, unknown.Sequence = 99, 5
	err := newIngest().HandleObserved(t.Context(), newMemoryStore(), []*ingest.Observed{unknown})
	var rejected *ingest.UnprocessableError
	require.ErrorAs(t, err, &rejected)
	require.EqualValues(t, 5, rejected.Sequence)
}

func TestTickMovesTheClockAndRecomputesDueWorkspaces(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	ide.ActualState = actualstate.Running
	s := newMemoryStore(ide)
	s.due, s.observation.Clock = []uuid.UUID{ide.ID}, start().Add(time.Hour)
	batch := []*ingest.Observed{tick(start().Add(time.Minute)), tick(start())}
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, batch))
	require.Equal(t, start().Add(time.Minute), s.clusters[7].TickedAt, "the clock never goes back")
	after := s.workspaces[ide.ID]
	require.Equal(t, actualstate.CreationRequested, after.ActualState)
	require.Equal(t, start().Add(time.Hour), after.ActualStateChangedAt, "without an event the clock is the time")
}

func TestTimeOfAnAgentIsBoundedByTheStream(t *testing.T) {
	t.Parallel()
	ahead := start().AddDate(1, 0, 0)
	limit := start().Add(event.MaxLead)
	s := newMemoryStore()
	began := begun("cluster-7", "", "100")
	began.At, began.Begun.ObservedAt = ahead, ahead
	began.StoredIn(1, start())
	require.Equal(t, limit, began.Begun.ObservedAt)
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{began, tickOf(ahead, start())}))
	require.Equal(t, limit, s.clusters[7].TickedAt)
	require.Equal(t, 365*24*time.Hour, s.clusters[7].ClockOffset)

	ended := &ingest.Observed{
		AgentID: 7, ClusterUID: "cluster-7", At: ahead, Ended: &events.ObservedResyncEnded{ObservedAt: ahead},
	}
	ended.StoredIn(2, start())
	require.Equal(t, limit, ended.Ended.ObservedAt)
	applied := &ingest.Applied{At: ahead}
	applied.StoredIn(3, start())
	require.Equal(t, limit, applied.At)
}

func TestClockOfTheStreamDecidesPolicies(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	s := newMemoryStore(ide)
	s.due = []uuid.UUID{ide.ID}
	s.observation.AgePolicies = workspace.AgePolicies{MaxAge: time.Hour, Warning: time.Minute}
	warnedAt := func(at, stored time.Time) time.Time {
		s.observation.Clock = at
		require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{tickOf(at, stored)}))
		return s.workspaces[ide.ID].WarnedAgeDeadline
	}
	require.Zero(t, warnedAt(start().AddDate(1, 0, 0), start().Add(59*time.Minute-1)), "the agent's clock is ahead")
	require.Equal(t, start().Add(time.Hour), warnedAt(start(), start().Add(59*time.Minute)), "the agent's clock is behind")
}

func TestPoliciesActAtTicksOnly(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	s := newMemoryStore(ide)
	s.due = []uuid.UUID{ide.ID}
	s.observation.AgePolicies = workspace.AgePolicies{MaxAge: time.Hour}
	// The watcher has been away, so nobody knows how long ago its last tick was.
	s.observation.Clock = start().Add(2 * time.Hour)
	require.NoError(t, newIngest().HandleApplied(t.Context(), s, []*ingest.Applied{{
		AgentID: 7, WorkspaceID: ide.ID, Label: ide.ID.String(), Revision: 1, Type: events.TypeApplied, At: start(),
	}}))
	require.Equal(t, workspace.DesiredRunning, s.workspaces[ide.ID].DesiredState)
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{tick(start().Add(2 * time.Hour))}))
	require.Equal(t, workspace.DesiredTerminated, s.workspaces[ide.ID].DesiredState)
}

func begun(cluster, nonce, version string) *ingest.Observed {
	return &ingest.Observed{
		AgentID: 7, ClusterUID: cluster, At: start(), Begun: &events.ObservedResyncBegun{
			ResyncID: "r1", ClusterUID: cluster, Nonce: nonce, ObservedAt: start(),
			ListVersions: []events.ListVersion{{Kind: ingest.KindDeployment, ResourceVersion: version}},
		},
	}
}

func TestBeginOfAFullResync(t *testing.T) {
	t.Parallel()
	nonce, err := agent.NewNonce(agent.Versions{ingest.KindDeployment: "100"})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		begun     *ingest.Observed
		epoch     int64
		requested bool
	}{
		"the same cluster":                      {begun("cluster-7", "", "100"), 1, false},
		"another cluster":                       {begun("cluster-9", "", "5"), 2, false},
		"lower versions":                        {begun("cluster-7", "", "99"), 1, true},
		"lower versions than the request knows": {begun("cluster-7", nonce, "99"), 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore()
			s.highest = agent.Versions{ingest.KindDeployment: "100"}
			require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{test.begun, test.begun}))
			require.Equal(t, []string{"r1"}, s.begun, "a duplicate is ignored")
			require.Equal(t, test.epoch, s.clusters[7].Epoch)
			if test.requested {
				require.Equal(t, []string{"lockstep.local.control.7.resync"}, s.subjects())
				return
			}
			require.Empty(t, s.subjects())
		})
	}
}

func ended(count int) *ingest.Observed {
	return &ingest.Observed{
		AgentID: 7, ClusterUID: "cluster-7", At: start(),
		Ended: &events.ObservedResyncEnded{ResyncID: "r1", Count: count, ObservedAt: start()},
	}
}

// openResync returns an open resync with two members, which listed Deployments at version 100.
func openResync() *ingest.EndedResync {
	return &ingest.EndedResync{
		Begun: start(), Expected: 2, Listed: agent.Versions{ingest.KindDeployment: "100"},
	}
}

// storeJudgement judges the ended resync of agent 7 and stores the steps one by one.
func storeJudgement(t *testing.T, s *memoryStore) {
	t.Helper()
	j, err := s.Judge(t.Context(), s.ended[7])
	require.NoError(t, err)
	for _, step := range j.Steps() {
		stored, err := newIngest().StoreJudgement(t.Context(), s, step)
		require.NoError(t, err)
		require.True(t, stored)
	}
}

func TestJudgementOfAFullResync(t *testing.T) {
	t.Parallel()
	lost, _ := newWorkspace(t, "lost")
	lost.AppliedRevision = 1
	for name, test := range map[string]struct {
		received int64
		count    int
		closed   []string
		deleted  bool
		revision int64
	}{
		"complete":          {2, 2, []string{"r1 complete"}, true, 2},
		"a member is lost":  {1, 2, []string{"r1 incomplete"}, false, 1},
		"the counts differ": {2, 3, []string{"r1 incomplete"}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore(lost)
			s.open, s.received, s.observation.Seen = openResync(), test.received, true
			report := observed("lost", "u", "8", lost.ID.String())
			require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{report, ended(test.count)}))
			require.Empty(t, s.judged, "the batch only records the end")
			require.Empty(t, s.closed)
			storeJudgement(t, s)
			require.Equal(t, test.closed, s.closed)
			require.Equal(t, test.deleted, s.objects[report.Object.Key()].Deleted, "only absent objects are deleted")
			require.Equal(t, test.revision, s.workspaces[lost.ID].DesiredRevision)
		})
	}
}

func TestEndOfAResyncThatIsNotOpenIsIgnored(t *testing.T) {
	t.Parallel()
	s := newMemoryStore()
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{ended(2)}))
	require.Empty(t, s.ended)
}

func TestBatchThatCouldChangeAJudgementJudgesFirst(t *testing.T) {
	t.Parallel()
	pod := observed("pod", "u", "8", "")
	pod.Object.Kind = ingest.KindPod
	next := begun("cluster-7", "", "101")
	next.Begun.ResyncID = "r2"
	for name, test := range map[string]struct {
		later  *ingest.Observed
		judged bool
	}{
		"the next resync begins":           {next, true},
		"a new cluster begins":             {begun("cluster-9", "", "5"), true},
		"a version that the list covers":   {observed("late", "u", "100", ""), true},
		"a version above the list":         {observed("new", "u", "101", ""), false},
		"an object whose kind has no list": {pod, false},
		"a tick":                           {tick(start()), false},
		"the end again":                    {ended(2), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, inOneBatch := range []bool{true, false} {
				s := newMemoryStore()
				s.open, s.received = openResync(), 2
				before := observed("before", "u", "8", "")
				batches := [][]*ingest.Observed{{before, ended(2)}, {test.later}}
				if inOneBatch {
					batches = [][]*ingest.Observed{{before, ended(2), test.later}}
				}
				for _, batch := range batches {
					require.NoError(t, newIngest().HandleObserved(t.Context(), s, batch))
				}
				require.Equal(t, test.judged, s.objects[before.Object.Key()].Deleted)
				if !test.judged {
					require.Contains(t, s.ended, int64(7))
					continue
				}
				require.Equal(t, []string{"r1 complete"}, s.closed)
				require.Empty(t, s.ended)
				if test.later.Object != nil {
					require.False(t, s.objects[test.later.Object.Key()].Deleted, "it is stored after the judgement")
				}
			}
		})
	}
}

func TestRebuildJudgesAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newMemoryStore()
	s.open, s.received = openResync(), 2
	in := newIngest()
	in.ReadModelOnly = true
	require.NoError(t, in.HandleObserved(t.Context(), s, []*ingest.Observed{ended(2)}))
	require.Equal(t, []string{"r1 complete"}, s.closed)
}

func TestJudgementIsStoredOnce(t *testing.T) {
	t.Parallel()
	lost, _ := newWorkspace(t, "lost")
	lost.AppliedRevision = 1
	s := newMemoryStore(lost)
	s.open, s.received, s.observation.Seen = openResync(), 2, true
	report := observed("lost", "u", "8", lost.ID.String())
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{report, ended(2)}))
	j, err := s.Judge(t.Context(), s.ended[7])
	require.NoError(t, err)
	storeJudgement(t, s)
	closed, messages := s.closed, len(s.messages)
	for _, step := range j.Steps() {
		stored, err := newIngest().StoreJudgement(t.Context(), s, step)
		require.NoError(t, err)
		require.False(t, stored)
	}
	require.Equal(t, closed, s.closed)
	require.Len(t, s.messages, messages)
}

func TestRecomputeAppliesEventsThenPolicies(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	ide.ActualState, ide.AppliedRevision = actualstate.Running, 1
	s := newMemoryStore(ide)
	s.due = []uuid.UUID{ide.ID, uuid.New()}
	s.observation.AgePolicies = workspace.AgePolicies{MaxAge: time.Hour}
	require.NoError(t, newIngest().HandleObserved(t.Context(), s, []*ingest.Observed{tick(start().Add(2 * time.Hour))}))
	after := s.workspaces[ide.ID]
	require.Equal(t, workspace.DesiredTerminated, after.DesiredState, "it is older than max_age")
	id := ide.ID.String()
	require.Equal(t, []string{
		"lockstep.local.desired.7." + id, "lockstep.local.desired_log.7." + id, "lockstep.local.access.workspace." + id,
		"lockstep.local.workspace.4." + id + ".state_changed", "lockstep.local.workspace.4." + id + ".desired_state_changed",
	}, s.subjects())
	before := len(s.messages)
	require.NoError(t, newIngest().Recompute(t.Context(), s, []uuid.UUID{ide.ID}))
	require.Len(t, s.messages, before, "an unchanged workspace publishes nothing")
}
