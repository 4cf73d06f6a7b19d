package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

func TestSavedWorkspaceIsReadBack(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	made := b.inserted(workspace.Creation{Name: "ide", IdempotencyKey: "k", Spec: workspace.Spec{
		Image:           "ide:9",
		Ports:           []workspace.Port{{Name: "http", Number: 80}},
		Env:             map[string]string{"A": "b"},
		SecretEnv:       []string{"T"},
		SecretEnvDigest: "d",
	}})
	got, err := b.store.Get(t.Context(), b.pool, postgres.WorkspaceReference{ID: made.ID})
	require.NoError(t, err)
	require.Equal(t, made, got)
	after := b.save(made.ID, func(w *workspace.Workspace) {
		w.Spec.Image = "ide:10"
		w.DesiredState, w.DesiredRevision = workspace.DesiredTerminated, 5
		w.DesiredStateChangedAt = start().Add(time.Second)
		w.ActualState, w.ActualStateRevision = actualstate.Error, 3
		w.ActualStateChangedAt, w.Reason, w.Message = start().Add(time.Minute), "R", "M"
		w.AppliedRevision, w.AppliedAt = 4, start().Add(time.Hour)
		w.ApplyError = &actualstate.ApplyError{Revision: 5, Reason: "R", Message: "M"}
		w.Termination, w.RecomputeAt = actualstate.TerminationInProgress, start().Add(2*time.Hour)
	})
	got, err = b.store.Get(t.Context(), b.pool, postgres.WorkspaceReference{Name: "ide"})
	require.NoError(t, err)
	require.Equal(t, after, got)
	got, err = b.store.GetByIdempotencyKey(t.Context(), b.pool, 9, "k")
	require.NoError(t, err)
	require.Equal(t, after, got)
	_, err = b.store.GetByIdempotencyKey(t.Context(), b.pool, 10, "k")
	require.True(t, fault.Is(err, errcode.NotFound))
	_, err = b.store.Get(t.Context(), b.pool, postgres.WorkspaceReference{Name: "none"})
	require.ErrorContains(t, err, `workspace "none" does not exist`)
}

func TestRetainedWorkspacesAreLocked(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	running, recent, old := b.inserted(workspace.Creation{Name: "running"}),
		b.inserted(workspace.Creation{Name: "recent"}), b.inserted(workspace.Creation{Name: "old"})
	for id, at := range map[uuid.UUID]time.Time{recent.ID: time.Now(), old.ID: time.Now().AddDate(0, 0, -31)} {
		b.save(id, func(w *workspace.Workspace) {
			w.ActualState, w.ActualStateChangedAt = actualstate.Terminated, at
		})
	}
	require.NoError(t, b.tx(func(tx pgx.Tx) error {
		locked, err := b.store.LockRetained(t.Context(), tx)
		ids := make([]uuid.UUID, len(locked))
		for i := range locked {
			ids[i] = locked[i].ID
		}
		require.ElementsMatch(t, []uuid.UUID{running.ID, recent.ID}, ids)
		return err
	}))
}

func TestFailedTransactionPublishesNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.inserted(workspace.Creation{Name: "ide", IdempotencyKey: "k"})
	b.outbox()
	_, err := b.insert(workspace.Creation{Name: "ide"})
	require.True(t, fault.Is(err, errcode.AlreadyExists), err)
	_, err = b.insert(workspace.Creation{Name: "other", IdempotencyKey: "k"})
	require.True(t, fault.Is(err, errcode.AlreadyExists), err)
	_, err = b.insert(workspace.Creation{Name: "other", AgentID: 99})
	require.True(t, fault.Is(err, errcode.NotFound), err)
	require.Empty(t, b.outbox())
}

func TestSaveNotifies(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	conn, err := b.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `listen `+postgres.WorkspaceChannel)
	require.NoError(t, err)
	made := b.inserted(workspace.Creation{Name: "ide"})
	n, err := conn.Conn().WaitForNotification(t.Context())
	require.NoError(t, err)
	require.Equal(t, made.ID.String(), n.Payload)
	b.save(made.ID, func(w *workspace.Workspace) { w.AppliedRevision = 1 })
	n, err = conn.Conn().WaitForNotification(t.Context())
	require.NoError(t, err)
	require.Equal(t, made.ID.String(), n.Payload)
}

func TestListWorkspaces(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	all := make([]workspace.Workspace, 0, 5)
	for i := range 5 {
		c := workspace.Creation{Name: fmt.Sprintf("w%d", i)}
		switch i {
		case 1:
			c.ProjectID = 5
		case 2:
			c.AgentID = 8
		case 3:
			c.UserID = 10
		}
		all = append(all, b.inserted(c))
	}
	b.save(all[4].ID, func(w *workspace.Workspace) {
		w.ActualState, w.DesiredState = actualstate.Terminated, workspace.DesiredTerminated
	})
	b.save(all[0].ID, func(w *workspace.Workspace) { w.ActualState = actualstate.Running })
	list := func(f postgres.WorkspaceFilter) []string {
		t.Helper()
		// Pages of size 1 must return all workspaces.
		names := []string{}
		for page := (postgres.WorkspacePage{Size: 1}); ; {
			found, err := b.store.List(t.Context(), b.pool, f, page)
			require.NoError(t, err)
			if len(found) == 0 {
				return names
			}
			names = append(names, found[0].Name)
			page.After = found[0].ID
		}
	}
	for name, test := range map[string]struct {
		filter postgres.WorkspaceFilter
		want   []string
	}{
		"all":             {postgres.WorkspaceFilter{}, []string{"w3", "w2", "w1", "w0"}},
		"with terminated": {postgres.WorkspaceFilter{IncludeTerminated: true}, []string{"w4", "w3", "w2", "w1", "w0"}},
		"terminated": {
			postgres.WorkspaceFilter{ActualStates: []actualstate.State{actualstate.Terminated}},
			[]string{"w4"},
		},
		"by actual states": {
			postgres.WorkspaceFilter{ActualStates: []actualstate.State{actualstate.Running, actualstate.Failed}},
			[]string{"w0"},
		},
		"by desired state": {
			postgres.WorkspaceFilter{
				DesiredStates:     []workspace.DesiredState{workspace.DesiredTerminated},
				IncludeTerminated: true,
			},
			[]string{"w4"},
		},
		"of a project":          {postgres.WorkspaceFilter{ProjectID: 5}, []string{"w1"}},
		"of an agent":           {postgres.WorkspaceFilter{AgentID: 8}, []string{"w2"}},
		"of a user":             {postgres.WorkspaceFilter{UserID: 10}, []string{"w3"}},
		"of visible projects":   {postgres.WorkspaceFilter{ProjectIDs: []int64{5, 6}}, []string{"w1"}},
		"of no visible project": {postgres.WorkspaceFilter{ProjectIDs: []int64{}}, []string{}},
		"by name and id": {
			postgres.WorkspaceFilter{References: []postgres.WorkspaceReference{{Name: "w4"}, {ID: all[1].ID}, {Name: "none"}}},
			[]string{"w4", "w1"},
		},
	} {
		require.Equal(t, test.want, list(test.filter), name)
	}
}
