package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

func (b *fixture) directory() *admin.Directory {
	return &admin.Directory{
		Directory: &postgres.Directory{DB: b.pool, Now: time.Now},
		Encoder:   encoder(),
	}
}

func lasting(d time.Duration) *agent.Milliseconds {
	m := agent.Milliseconds(d)
	return &m
}

func TestAgentConfigurationIsPublished(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	made, err := d.RegisterAgent(
		t.Context(),
		agent.Agent{ProjectID: 4, Name: "new", CurvePublicKey: "X", TokenHash: []byte("new")},
		10,
	)
	require.NoError(t, err)
	messages := b.outbox()
	require.Len(t, messages, 2, "the entry and the configuration")
	control := messages[1].Subject
	require.Regexp(t, `^lockstep\.local\.control\.\d+\.config$`, control)
	require.Equal(
		t,
		map[string]any{
			"config_revision":           1.0,
			"full_resync_interval_ms":   3600000.0,
			"unschedulable_patience_ms": 300000.0,
			"stop_patience_ms":          300000.0,
		},
		messages[1].Data,
	)

	changed, err := d.ConfigureAgent(
		t.Context(),
		made.ID,
		agent.Settings{FullResyncInterval: lasting(time.Minute), MaxWorkspaces: new(3)},
	)
	require.NoError(t, err)
	require.EqualValues(t, 2, changed.ConfigurationRevision)
	want := agent.DefaultConfiguration()
	want.FullResyncInterval, want.MaxWorkspaces = time.Minute, 3
	require.Equal(t, want, changed.Configuration)
	messages = b.outbox()
	require.Len(t, messages, 1)
	require.Equal(t, control, messages[0].Subject)
	require.EqualValues(t, 2, messages[0].Data["config_revision"])
	require.EqualValues(t, 60000, messages[0].Data["full_resync_interval_ms"])

	for name, nothing := range map[string]agent.Settings{
		"nothing": {}, "the same": {
			MaxWorkspaces: new(3),
		}, "the default value": {StopPatience: lasting(agent.DefaultStopPatience)},
	} {
		same, err := d.ConfigureAgent(t.Context(), made.ID, nothing)
		require.NoError(t, err)
		require.Subset(t, same.OwnSettings, changed.OwnSettings)
		changed.OwnSettings = same.OwnSettings // also those that have the default value
		require.Equal(t, changed, same, name)
		require.Empty(t, b.outbox(), name)
	}
	_, err = d.ConfigureAgent(
		t.Context(),
		made.ID,
		agent.Settings{MaxAge: lasting(-1), MaxWorkspaces: new(9), StopPatience: lasting(1)},
	)
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Len(t, fault.From(err).Details, 2)
	got, err := d.Agent(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, changed.Configuration, got.Configuration, "an invalid change has no effect")
	_, err = d.ConfigureAgent(t.Context(), 99, agent.Settings{})
	require.True(t, fault.Is(err, errcode.NotFound))

	require.NoError(t, b.tx(func(tx pgx.Tx) error { return d.RepublishAll(t.Context(), tx) }))
	again := map[string]message{}
	for _, m := range b.outbox() {
		again[m.Subject] = m
	}
	require.Equal(t, messages[0].Data, again[control].Data, "republished unchanged after a restore")
	require.Equal(t, messages[0].Header["ce-id"], again[control].Header["ce-id"])
	require.Contains(t, again, "lockstep.local.control.7.config")

	require.NoError(t, b.tx(func(tx pgx.Tx) error { return d.RaiseConfigurations(t.Context(), tx) }))
	raised, err := d.Agent(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, changed.Configuration, raised.Configuration)
	require.Greater(t, raised.ConfigurationRevision, int64(1e9), "above all earlier revisions")
	require.NoError(t, b.tx(func(tx pgx.Tx) error { return d.RaiseConfigurations(t.Context(), tx) }))
	further, err := d.Agent(t.Context(), made.ID)
	require.NoError(t, err)
	require.Greater(t, further.ConfigurationRevision, raised.ConfigurationRevision)

	_, err = d.RevokeAgent(t.Context(), made.ID)
	require.NoError(t, err)
	_, err = d.ConfigureAgent(t.Context(), made.ID, agent.Settings{MaxWorkspaces: new(5)})
	require.True(t, fault.Is(err, errcode.FailedPrecondition), err)
	b.outbox()
	require.NoError(t, b.tx(func(tx pgx.Tx) error { return d.RepublishAll(t.Context(), tx) }))
	for _, m := range b.outbox() {
		require.NotEqual(t, control, m.Subject, "no configuration is published for a revoked agent")
	}
}

func TestRelayTargetsAreInTheConfigurationEvent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	configure := func(targets ...agent.RelayTarget) (agent.Agent, []message) {
		t.Helper()
		a, err := d.ConfigureAgent(t.Context(), 7, agent.Settings{RelayTargets: &targets})
		require.NoError(t, err)
		return a, b.outbox()
	}
	shop, db := agent.RelayTarget{
		Name:    "shop",
		Address: "shop.apps.svc:80",
	}, agent.RelayTarget{
		Name:    "db",
		Address: "db.apps.svc:5432",
	}
	a, messages := configure(shop, db)
	require.Equal(t, []agent.RelayTarget{db, shop}, a.Configuration.RelayTargets)
	require.Len(t, messages, 1)
	require.Equal(
		t,
		[]any{
			map[string]any{"name": "db", "address": "db.apps.svc:5432"},
			map[string]any{"name": "shop", "address": "shop.apps.svc:80"},
		},
		messages[0].Data["relay_targets"],
	)
	same, messages := configure(db, shop)
	require.Equal(t, a.ConfigurationRevision, same.ConfigurationRevision)
	require.Empty(t, messages, "the order is no change")
	other, err := d.ConfigureAgent(t.Context(), 7, agent.Settings{MaxWorkspaces: new(3)})
	require.NoError(t, err)
	require.Equal(t, a.Configuration.RelayTargets, other.Configuration.RelayTargets, "omitted settings do not change")
	require.Len(t, b.outbox()[0].Data["relay_targets"], 2)
	none, messages := configure()
	require.Empty(t, none.Configuration.RelayTargets)
	require.Len(t, messages, 1)
	require.NotContains(t, messages[0].Data, "relay_targets")
	require.Greater(t, none.ConfigurationRevision, other.ConfigurationRevision)
}

func TestConcurrentConfigurationChangesAreMerged(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	var changing sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		changing.Go(func() {
			change := agent.Settings{MaxWorkspaces: new(i)}
			if i%2 == 0 {
				change = agent.Settings{MaxWorkspacesPerUser: new(i)}
			}
			_, errs[i] = d.ConfigureAgent(t.Context(), 7, change)
		})
	}
	changing.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	got, err := d.Agent(t.Context(), 7)
	require.NoError(t, err)
	require.EqualValues(t, 9, got.ConfigurationRevision)
	require.Equal(t, 1, got.Configuration.MaxWorkspaces%2)
	require.Equal(t, 0, got.Configuration.MaxWorkspacesPerUser%2)
	revisions := map[any]bool{}
	for _, m := range b.outbox() {
		revisions[m.Data["config_revision"]] = true
	}
	require.Len(t, revisions, 8, "each change is published")
}

func TestQuotaIsNeverExceeded(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	_, err := b.directory().
		ConfigureAgent(t.Context(), 7, agent.Settings{MaxWorkspaces: new(3), MaxWorkspacesPerUser: new(2)})
	require.NoError(t, err)
	create := func(name string, user int64) error {
		w, _, err := workspace.New(
			workspace.Creation{
				Name:      name,
				ProjectID: 4,
				AgentID:   7,
				UserID:    user,
				Template:  "default",
				Spec:      workspace.Spec{Image: "ide:9"},
				Now:       start(),
			},
		)
		require.NoError(t, err)
		return b.tx(func(tx pgx.Tx) error {
			if err := b.store.CheckQuota(t.Context(), tx, w); err != nil {
				return err
			}
			return b.store.Insert(t.Context(), tx, w)
		})
	}
	var creating sync.WaitGroup
	errs := make([]error, 12)
	for i := range errs {
		creating.Go(func() { errs[i] = create(string(rune('a'+i)), 9+int64(i%2)) })
	}
	creating.Wait()
	admitted, refused := 0, map[string]int{}
	for _, err := range errs {
		if err == nil {
			admitted++
			continue
		}
		require.True(t, fault.Is(err, errcode.QuotaExceeded), err)
		refused[fault.From(err).Details["limit"]]++
	}
	require.Equal(t, 3, admitted)
	require.NotZero(t, refused["max_workspaces_per_user"])
	require.NotZero(t, refused["max_workspaces"])
	b.inserted(workspace.Creation{Name: "elsewhere", AgentID: 8})

	// Workspaces with desired or actual state terminated do not count.
	found, err := b.store.List(
		t.Context(),
		b.pool,
		postgres.WorkspaceFilter{AgentID: 7, UserID: 9},
		postgres.WorkspacePage{Size: 1},
	)
	require.NoError(t, err)
	b.save(found[0].ID, func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredTerminated })
	require.NoError(t, create("x", 9))
	require.Error(t, create("y", 9))
	b.save(found[0].ID, func(w *workspace.Workspace) { w.ActualState = actualstate.Terminated })
	require.Error(t, create("y", 9))
	_, err = b.directory().
		ConfigureAgent(t.Context(), 7, agent.Settings{
			MaxWorkspaces:        new(agent.Unlimited),
			MaxWorkspacesPerUser: new(agent.Unlimited),
		})
	require.NoError(t, err)
	require.NoError(t, create("y", 9))
	unknownAgent, _, err := workspace.New(
		workspace.Creation{
			Name:      "z",
			ProjectID: 4,
			AgentID:   99,
			UserID:    9,
			Spec:      workspace.Spec{Image: "ide:9"},
			Now:       start(),
		},
	)
	require.NoError(t, err)
	require.True(
		t,
		fault.Is(b.tx(func(tx pgx.Tx) error { return b.store.CheckQuota(t.Context(), tx, unknownAgent) }), errcode.NotFound),
	)
}

func TestLastResyncOfAnAgent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	none, err := b.directory().LastResyncs(t.Context(), []int64{7, 8})
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = b.pool.Exec(t.Context(), `
		insert into resyncs (agent_id, resync_id, cluster_uid, epoch, nonce, cause, list_versions, expected, received,
			outcome, begun_at, ended_at) values
			(7, 'b', 'c', 1, null, 'start', '{}', 5, 5, 'complete', $1, $2),
			(7, 'a', 'c', 1, 'n', 'requested', '{}', 6, 0, 'open', $2, null),
			(8, 'c', 'c', 1, null, 'start', '{}', 5, 4, 'incomplete', $1, $2)`, start(), start().Add(time.Minute))
	require.NoError(t, err)
	found, err := b.directory().LastResyncs(t.Context(), []int64{7, 99})
	require.NoError(t, err)
	require.Len(t, found, 1)
	last := found[7]
	last.BegunAt = last.BegunAt.UTC()
	require.Equal(
		t,
		agent.Resync{ID: "a", Cause: "requested", Nonce: "n", Outcome: "open", Count: 6, BegunAt: start().Add(time.Minute)},
		last,
	)
}
