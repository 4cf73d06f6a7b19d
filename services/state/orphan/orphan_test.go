package orphan_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

func found(label string) orphan.Orphan {
	return orphan.Orphan{AgentID: 7, UID: "u", Label: label, Namespace: "ws-9-left", Name: "left", SeenAt: start()}
}

func creation() workspace.Creation {
	return workspace.Creation{
		ProjectID: 4, UserID: 9, Template: "default", Spec: workspace.Spec{Image: "ide:9"}, Now: start(),
	}
}

func TestAdoptionKeepsNameNamespaceAndState(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for name, test := range map[string]struct {
		observed orphan.Observation
		desired  workspace.DesiredState
		revision int64
	}{
		"running":            {orphan.Observation{Replicas: 1, Revision: 5}, workspace.DesiredRunning, 6},
		"stopped":            {orphan.Observation{Replicas: 0, Revision: 5}, workspace.DesiredStopped, 6},
		"without a revision": {orphan.Observation{Replicas: 1}, workspace.DesiredRunning, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, changes, err := found(id.String()).Adopt(test.observed, creation())
			require.NoError(t, err)
			require.Equal(t, id, w.ID)
			require.Equal(t, []any{"left", "ws-9-left", int64(7)}, []any{w.Name, w.Namespace, w.AgentID})
			require.Equal(t, test.desired, w.DesiredState)
			require.Equal(t, test.revision, w.DesiredRevision, "above the revision that the cluster has")
			require.Len(t, changes, 1)
		})
	}
}

func TestOrphansThatCannotBeAdopted(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	deleting, elsewhere, misnamed := found(id), found(id), found(id)
	deleting.DesiredRevision = 3
	elsewhere.Namespace = "kube-system"
	misnamed.Name = "a.b"
	for name, test := range map[string]struct {
		orphan orphan.Orphan
		code   fault.Code
		want   string
	}{
		"it is being deleted":       {deleting, errcode.FailedPrecondition, "is being deleted"},
		"the label is no UUID":      {found("some.body"), errcode.FailedPrecondition, "is not a workspace id"},
		"the UUID is not canonical": {found("{" + id + "}"), errcode.FailedPrecondition, "is not a workspace id"},
		"the UUID is nil":           {found(uuid.Nil.String()), errcode.FailedPrecondition, "is not a workspace id"},
		"another namespace":         {elsewhere, errcode.FailedPrecondition, "dispatchers change only namespaces"},
		"an invalid name":           {misnamed, errcode.InvalidArgument, "is not a workspace name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := test.orphan.Adopt(orphan.Observation{Replicas: 1}, creation())
			require.True(t, fault.Is(err, test.code), "%v", err)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestDeletionHasTheHighestRevision(t *testing.T) {
	t.Parallel()
	twin := func(revision int64, ended time.Time) []orphan.Orphan {
		return []orphan.Orphan{{AgentID: 7, UID: "twin", Label: "l", DesiredRevision: revision, EndedAt: ended}}
	}
	requested := found("l")
	requested.DesiredRevision, requested.Message = 4, "the last attempt failed"
	for name, test := range map[string]struct {
		orphan   orphan.Orphan
		highest  int64
		others   []orphan.Orphan
		revision int64
	}{
		"the first revision":                   {found("l"), 0, nil, 1},
		"above the cluster's":                  {found("l"), 5, nil, 6},
		"above an ended deletion of the label": {found("l"), 5, twin(8, start()), 9},
		"requested again":                      {requested, 0, []orphan.Orphan{requested}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after, err := test.orphan.Delete(9, test.highest, test.others)
			require.NoError(t, err)
			require.Equal(t, test.revision, after.DesiredRevision)
			require.EqualValues(t, 9, after.UserID)
			require.Empty(t, after.Message)
			require.True(t, after.BeingDeleted())
		})
	}
	_, err := found("l").Delete(9, 0, twin(8, time.Time{}))
	require.True(t, fault.Is(err, errcode.FailedPrecondition), "%v", err)
}

func TestReportsOfTheDispatcher(t *testing.T) {
	t.Parallel()
	before := found("l")
	before.DesiredRevision, before.Message = 4, "earlier"
	with := func(change func(o *orphan.Orphan)) orphan.Orphan {
		after := before
		change(&after)
		return after
	}
	for name, test := range map[string]struct{ after, want orphan.Orphan }{
		"failed":               {before.DeletionFailed(4, 0, "no"), with(func(o *orphan.Orphan) { o.Message = "no" })},
		"failed, old revision": {before.DeletionFailed(3, 0, "no"), before},
		"the cluster is newer": {
			before.DeletionFailed(4, 9, "no"), with(func(o *orphan.Orphan) { o.DesiredRevision = 10 }),
		},
		"deleting":               {before.Deleting(4), with(func(o *orphan.Orphan) { o.Message = "" })},
		"deleting, old revision": {before.Deleting(3), before},
		"deleted": {
			before.Deleted(4, start()), with(func(o *orphan.Orphan) { o.Message, o.EndedAt = "", start() }),
		},
		"deleted, old revision": {before.Deleted(3, start()), before},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, test.after)
		})
	}
}

func TestUpdateNamesWhatChanged(t *testing.T) {
	t.Parallel()
	before := found("l")
	requested, err := before.Delete(9, 0, nil)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		update                         orphan.Update
		changed, dispatches, completes bool
	}{
		"nothing":      {orphan.Update{Before: before, After: before}, false, false, false},
		"the request":  {orphan.Update{Before: before, After: requested}, true, true, false},
		"the progress": {orphan.Update{Before: requested, After: requested.DeletionFailed(1, 0, "no")}, true, false, false},
		"the end":      {orphan.Update{Before: requested, After: requested.Deleted(1, start())}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.changed, test.update.Changed())
			require.Equal(t, test.dispatches, test.update.Dispatches())
			require.Equal(t, test.completes, test.update.Completes())
		})
	}
}
