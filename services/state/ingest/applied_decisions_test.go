package ingest_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// report returns an event of APPLIED about a workspace of agent 7.
func report(kind string, id uuid.UUID, revision int64) *ingest.Applied {
	return &ingest.Applied{
		Sequence: 5, AgentID: 7, Label: id.String(), WorkspaceID: id, Revision: revision, At: start(), Type: kind,
	}
}

func TestAppliedEventsChangeTheWorkspace(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	failed := report(events.TypeApplyFailed, ide.ID, 1)
	failed.Reason, failed.Message = "Forbidden", "no"
	superseded := report(events.TypeApplyFailed, ide.ID, 1)
	superseded.ClusterRevision = 5
	changed := "lockstep.local.workspace.4." + ide.ID.String() + ".state_changed"
	for name, test := range map[string]struct {
		batch     []*ingest.Applied
		want      func(w *workspace.Workspace)
		published []string
	}{
		"applied": {
			batch: []*ingest.Applied{report(events.TypeApplied, ide.ID, 1)},
			want:  func(w *workspace.Workspace) { w.AppliedRevision, w.AppliedAt = 1, start() },
		},
		"failed": {
			batch: []*ingest.Applied{failed},
			want: func(w *workspace.Workspace) {
				w.ApplyError = &actualstate.ApplyError{Revision: 1, Reason: "Forbidden", Message: "no"}
				w.ActualState, w.ActualStateRevision = actualstate.Error, 1
				w.Reason, w.Message = "Forbidden", "no"
			},
			published: []string{"lockstep.local.access.workspace." + ide.ID.String(), changed},
		},
		"failed, then applied in one batch": {
			batch: []*ingest.Applied{failed, report(events.TypeApplied, ide.ID, 1)},
			want:  func(w *workspace.Workspace) { w.AppliedRevision, w.AppliedAt = 1, start() },
		},
		"the cluster has a newer revision": {
			batch: []*ingest.Applied{superseded},
			want:  func(w *workspace.Workspace) { w.DesiredRevision = 6 },
			published: []string{
				"lockstep.local.desired.7." + ide.ID.String(), "lockstep.local.desired_log.7." + ide.ID.String(),
				"lockstep.local.access.workspace." + ide.ID.String(),
				"lockstep.local.workspace.4." + ide.ID.String() + ".desired_state_changed",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore(ide)
			require.NoError(t, newIngest().HandleApplied(t.Context(), s, test.batch))
			want := ide
			want.RecomputeAt = time.Time{} // it has no deadline
			test.want(&want)
			require.Equal(t, want, s.workspaces[ide.ID])
			require.Equal(t, test.published, s.subjects())
		})
	}
}

func TestAppliedEventsThatAreRejected(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	ofAnother := report(events.TypeApplied, ide.ID, 1)
	ofAnother.AgentID = 8
	for name, test := range map[string]struct {
		event *ingest.Applied
		want  string
	}{
		"another agent's workspace": {ofAnother, "belongs to agent 7, not to agent 8"},
		"an unknown workspace":      {report(events.TypeApplied, uuid.New(), 1), "does not exist"},
		"a label that is not a UUID": {
			&ingest.Applied{Sequence: 5, AgentID: 7, Label: "some.body"}, `"some.body" does not exist`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore(ide)
			err := newIngest().HandleApplied(t.Context(), s, []*ingest.Applied{test.event})
			var rejected *ingest.UnprocessableError
			require.ErrorAs(t, err, &rejected)
			require.EqualValues(t, 5, rejected.Sequence)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, ide, s.workspaces[ide.ID])
		})
	}
}

func TestAppliedEventsOfADeletedOrphan(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	open := orphan.Orphan{AgentID: 7, UID: "u", Label: id.String(), Namespace: "ws-7-o", Name: "o", DesiredRevision: 3}
	ended := open
	ended.UID, ended.EndedAt = "earlier", start().Add(-time.Hour)
	failed := report(events.TypeApplyFailed, id, 3)
	failed.Message = "no"
	desired, deleted := cell.Desired(7, id.String()), cell.Workspace(0, id.String(), "orphan_deleted")
	for name, test := range map[string]struct {
		orphans   []orphan.Orphan
		event     *ingest.Applied
		want      func(o *orphan.Orphan)
		published []string
	}{
		"terminated": {
			[]orphan.Orphan{open},
			report(events.TypeTerminated, id, 3),
			func(o *orphan.Orphan) { o.EndedAt = start() },
			[]string{desired, deleted},
		},
		"terminated, and an earlier orphan had the label": {
			[]orphan.Orphan{open, ended},
			report(events.TypeTerminated, id, 3),
			func(o *orphan.Orphan) { o.EndedAt = start() },
			[]string{desired, deleted},
		},
		"an earlier revision terminated": {
			[]orphan.Orphan{open}, report(events.TypeTerminated, id, 2), func(*orphan.Orphan) {}, nil,
		},
		"failed": {
			[]orphan.Orphan{open}, failed, func(o *orphan.Orphan) { o.Message = "no" }, nil,
		},
		"a duplicate after the end": {
			[]orphan.Orphan{ended}, report(events.TypeTerminated, id, 3), func(*orphan.Orphan) {}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemoryStore()
			s.orphans = append(s.orphans, test.orphans...)
			require.NoError(t, newIngest().HandleApplied(t.Context(), s, []*ingest.Applied{test.event}))
			want := test.orphans[0]
			test.want(&want)
			require.Equal(t, want, s.orphans[0])
			require.Equal(t, test.orphans[1:], s.orphans[1:])
			require.Equal(t, test.published, s.subjects())
		})
	}
}

func TestReadModelOnlyPublishesNothing(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	s := newMemoryStore(ide)
	i := newIngest()
	i.ReadModelOnly = true
	superseded := report(events.TypeApplyFailed, ide.ID, 1)
	superseded.ClusterRevision = 5
	require.NoError(t, i.HandleApplied(t.Context(), s, []*ingest.Applied{superseded}))
	require.Equal(t, ide.DesiredRevision, s.workspaces[ide.ID].DesiredRevision, "the desired state does not change")
	o := orphan.Orphan{AgentID: 7, UID: "u", Label: "l", DesiredRevision: 3}
	s.orphans = []orphan.Orphan{o}
	ended := &ingest.Applied{AgentID: 7, Label: "l", Revision: 3, At: start(), Type: events.TypeTerminated}
	require.NoError(t, i.HandleApplied(t.Context(), s, []*ingest.Applied{ended}))
	require.Equal(t, start(), s.orphans[0].EndedAt)
	require.Empty(t, s.messages)
}
