package postgres_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

type bundle struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *postgres.Workspaces
}

func setup(t *testing.T) *bundle {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Database(t)}, logger)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	series, err := postgres.Migrations()
	require.NoError(t, err)
	require.NoError(t, libpostgres.Migrate(t.Context(), pool, logger, series...))
	b := &bundle{t: t, pool: pool, store: &postgres.Workspaces{Encoder: publish.Encoder{Cell: "local"}}}
	for _, sql := range []string{
		`insert into organizations (id, name) values (1, 'o')`, `insert into groups (id, organization_id, name) values (2, 1, 'g')`,
		`insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p'), (5, 1, 2, 'q')`,
		`insert into users (id, username) values (9, 'u'), (10, 'v')`,
		`insert into agents (id, project_id, name, token_hash, curve_public_key) values (7, 4, 'a', 'a', 'X'), (8, 4, 'b', 'b', 'X')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return b
}

func (b *bundle) tx(fn func(tx pgx.Tx) error) error {
	return libpostgres.InTx(b.t.Context(), b.pool, fn)
}

func (b *bundle) insert(c workspace.Creation) (workspace.Workspace, error) {
	b.t.Helper()
	if c.ProjectID == 0 {
		c.ProjectID = 4
	}
	if c.AgentID == 0 {
		c.AgentID = 7
	}
	if c.UserID == 0 {
		c.UserID = 9
	}
	c.Template, c.Now = "default", start()
	if c.Spec.Image == "" {
		c.Spec.Image = "ide:9"
	}
	w, created, err := workspace.New(c)
	require.NoError(b.t, err)
	return w, b.tx(func(tx pgx.Tx) error { return b.store.Insert(b.t.Context(), tx, w, created) })
}

func (b *bundle) inserted(c workspace.Creation) workspace.Workspace {
	b.t.Helper()
	w, err := b.insert(c)
	require.NoError(b.t, err)
	return w
}

func (b *bundle) save(id uuid.UUID, change func(w *workspace.Workspace)) workspace.Workspace {
	b.t.Helper()
	var after workspace.Workspace
	require.NoError(b.t, b.tx(func(tx pgx.Tx) error {
		locked, err := b.store.Lock(b.t.Context(), tx, []uuid.UUID{id, uuid.New()})
		if err != nil {
			return err
		}
		require.Len(b.t, locked, 1)
		before := locked[id]
		after = before
		change(&after)
		return b.store.Save(b.t.Context(), tx, workspace.Update{Before: before, After: after})
	}))
	return after
}

// decide saves a workspace with the events of a decision.
func (b *bundle) decide(id uuid.UUID, decide func(w workspace.Workspace) (workspace.Workspace, []workspace.Event)) {
	b.t.Helper()
	require.NoError(b.t, b.tx(func(tx pgx.Tx) error {
		locked, err := b.store.Lock(b.t.Context(), tx, []uuid.UUID{id})
		if err != nil {
			return err
		}
		after, events := decide(locked[id])
		return b.store.Save(b.t.Context(), tx, workspace.Update{Before: locked[id], After: after, Events: events})
	}))
}

// message is a row of the outbox.
type message struct {
	Subject string
	Header  map[string][]string
	Data    map[string]any
}

func (b *bundle) outbox() []message {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `select subject, header, data from outbox order by id`)
	require.NoError(b.t, err)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (message, error) {
		var m message
		var data []byte
		if err := row.Scan(&m.Subject, &m.Header, &data); err != nil {
			return m, err
		}
		return m, json.Unmarshal(data, &m.Data)
	})
	require.NoError(b.t, err)
	_, err = b.pool.Exec(b.t.Context(), `delete from outbox`)
	require.NoError(b.t, err)
	return found
}

func TestSavedWorkspaceIsReadBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
		w.Spec.Image, w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt = "ide:10", workspace.DesiredTerminated, 5, start().Add(time.Second)
		w.ActualState, w.ActualStateRevision, w.ActualStateChangedAt, w.Reason, w.Message = actualstate.Error, 3, start().Add(time.Minute),
			"R", "M"
		w.AppliedRevision, w.AppliedAt = 4, start().Add(time.Hour)
		w.ApplyError = &actualstate.ApplyError{Revision: 5, Reason: "R", Message: "M"}
		w.Termination, w.ReconsiderAt = actualstate.TerminationInProgress, start().Add(2*time.Hour)
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

func TestSavePublishesChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.inserted(workspace.Creation{Name: "ide"})
	id := made.ID.String()
	told := b.outbox()
	require.Len(t, told, 3)
	require.Equal(t, "lockstep.local.desired.7."+id, told[0].Subject)
	require.Equal(t, []string{id + "/dispatch/1"}, told[0].Header["ce-id"])
	require.Equal(t, "running", told[0].Data["target"])
	require.Equal(
		t,
		message{Subject: "lockstep.local.desired_log.7." + id, Header: told[0].Header, Data: told[0].Data},
		told[1],
		"the same for the history",
	)
	require.Equal(t, "lockstep.local.workspace.4."+id+".created", told[2].Subject)
	require.Equal(t, []string{"/lockstep/local/state"}, told[2].Header["ce-source"])

	b.save(made.ID, func(*workspace.Workspace) {})
	b.save(made.ID, func(w *workspace.Workspace) { w.AppliedRevision = 1 })
	require.Empty(t, b.outbox(), "nothing that others have to hear of")

	b.decide(made.ID, func(w workspace.Workspace) (workspace.Workspace, []workspace.Event) {
		return w.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "R", Message: "M"}, start())
	})
	b.decide(made.ID, func(w workspace.Workspace) (workspace.Workspace, []workspace.Event) {
		return w.Observe(workspace.Observation{At: start()})
	})
	told = b.outbox()
	require.Len(t, told, 1)
	require.Equal(t, "lockstep.local.workspace.4."+id+".state_changed", told[0].Subject)
	require.Equal(t, []string{id + "/actual/1"}, told[0].Header["ce-id"])

	b.decide(made.ID, func(w workspace.Workspace) (workspace.Workspace, []workspace.Event) {
		stopped, events, err := w.SetDesired(workspace.DesiredStopped, 10, start())
		require.NoError(t, err)
		return stopped, events
	})
	told = b.outbox()
	require.Len(t, told, 3)
	require.Equal(
		t,
		[]any{"stopped", "stopped", "stopped"},
		[]any{told[0].Data["target"], told[1].Data["target"], told[2].Data["to"]},
	)
	require.EqualValues(t, 10, told[2].Data["user_id"])

	terminated := b.inserted(workspace.Creation{Name: "gone"})
	b.save(terminated.ID, func(w *workspace.Workspace) { w.ActualState = actualstate.Terminated })
	b.outbox()
	require.NoError(t, b.tx(func(tx pgx.Tx) error { return b.store.RepublishAll(t.Context(), tx) }))
	told = b.outbox()
	require.Len(t, told, 1)
	require.Equal(t, "lockstep.local.desired.7."+id, told[0].Subject)
	require.EqualValues(t, 2, told[0].Data["desired_revision"], "as it is, with no revision more")
}

func TestFailedTransactionPublishesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
	b := setup(t)
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
	b := setup(t)
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
		// In pages of one, which have to add up to the whole.
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
		"all":                   {postgres.WorkspaceFilter{}, []string{"w3", "w2", "w1", "w0"}},
		"with terminated":       {postgres.WorkspaceFilter{IncludeTerminated: true}, []string{"w4", "w3", "w2", "w1", "w0"}},
		"terminated":            {postgres.WorkspaceFilter{ActualStates: []actualstate.State{actualstate.Terminated}}, []string{"w4"}},
		"by actual states":      {postgres.WorkspaceFilter{ActualStates: []actualstate.State{actualstate.Running, actualstate.Failed}}, []string{"w0"}},
		"by desired state":      {postgres.WorkspaceFilter{DesiredStates: []workspace.DesiredState{workspace.DesiredTerminated}, IncludeTerminated: true}, []string{"w4"}},
		"of a project":          {postgres.WorkspaceFilter{ProjectID: 5}, []string{"w1"}},
		"of an agent":           {postgres.WorkspaceFilter{AgentID: 8}, []string{"w2"}},
		"of a user":             {postgres.WorkspaceFilter{UserID: 10}, []string{"w3"}},
		"of visible projects":   {postgres.WorkspaceFilter{ProjectIDs: []int64{5, 6}}, []string{"w1"}},
		"of no visible project": {postgres.WorkspaceFilter{ProjectIDs: []int64{}}, []string{}},
		"by name and id":        {postgres.WorkspaceFilter{References: []postgres.WorkspaceReference{{Name: "w4"}, {ID: all[1].ID}, {Name: "none"}}}, []string{"w4", "w1"}},
	} {
		require.Equal(t, test.want, list(test.filter), name)
	}
}
