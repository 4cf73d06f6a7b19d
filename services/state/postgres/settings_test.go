package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

// takeToRender empties the queue.
func (b *fixture) takeToRender() []uuid.UUID {
	b.t.Helper()
	var ids []uuid.UUID
	require.NoError(b.t, b.tx(func(tx pgx.Tx) (err error) {
		if ids, err = (&postgres.IngestStores{}).In(tx).LockToRender(b.t.Context(), 100, nil); err != nil {
			return err
		}
		_, err = tx.Exec(b.t.Context(), `update workspaces set rendered_revision = desired_revision where id = any($1)`, ids)
		return err
	}))
	return ids
}

func TestOnlyChangesOfManifestsRenderWorkspacesAgain(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	one, err := b.insert(workspace.Creation{Name: "one"})
	require.NoError(t, err)
	two, err := b.insert(workspace.Creation{Name: "two", AgentID: 8})
	require.NoError(t, err)

	_, err = d.ConfigureAgent(t.Context(), 7, agent.Settings{MaxCPU: new("8"), StorageClass: new("fast")})
	require.NoError(t, err)
	require.Empty(t, b.takeToRender())
	for range 2 {
		_, err = d.ConfigureAgent(t.Context(), 7, agent.Settings{ResourceQuota: new(true)})
		require.NoError(t, err)
	}
	require.Equal(t, []uuid.UUID{one.ID}, b.takeToRender())
	_, err = d.ConfigureAgent(t.Context(), 7, agent.Settings{}, "resource_quota")
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{one.ID}, b.takeToRender())

	cell := agent.Settings{EgressAllowed: &[]string{}, MaxCPU: new("4")}
	require.NoError(t, d.ConfigureCell(t.Context(), cell))
	require.Empty(t, b.takeToRender(), "the networks have not changed")
	cell.EgressAllowed = &[]string{"10.9.0.0/16"}
	for range 2 {
		require.NoError(t, d.ConfigureCell(t.Context(), cell))
	}
	require.ElementsMatch(t, []uuid.UUID{one.ID, two.ID}, b.takeToRender())
	require.NoError(t, d.ConfigureCell(t.Context(), cell))
	require.Empty(t, b.takeToRender(), "a restart of the service changes nothing")

	found, err := d.AgentConfigurations(t.Context(), []int64{7, 8})
	require.NoError(t, err)
	require.Equal(t, []string{"8", "4"}, []string{found[7].Maximums.CPU, found[8].Maximums.CPU})
	require.Equal(t, []string{"10.9.0.0/16"}, found[7].Manifests.EgressAllowed)
}

// TestRevisionsOfAnOlderReplicaAreRenderedAgain writes a revision as a version without rendered_revision does.
func TestRevisionsOfAnOlderReplicaAreRenderedAgain(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	var all []uuid.UUID
	for i := range 6 {
		all = append(all, b.inserted(workspace.Creation{Name: fmt.Sprintf("ide-%d", i)}).ID)
	}
	require.Empty(t, b.takeToRender())
	old := func(sql string, ids ...uuid.UUID) {
		_, err := b.pool.Exec(t.Context(), `update workspaces set `+sql+` where id = any($1)`, ids)
		require.NoError(t, err)
	}
	old(`desired_revision = desired_revision + 1`, all...)
	old(`desired_state = 'terminated'`, all[0])
	require.Equal(t, all[1:], b.takeToRender(), "a termination has no manifests")

	old(`desired_revision = desired_revision + 1`, all[1:]...)
	b.save(all[1], func(w *workspace.Workspace) { w.DesiredRevision++ })
	b.save(all[2], func(w *workspace.Workspace) { w.Message = "unchanged" })
	require.Equal(t, all[2:], b.takeToRender(), "this version renders each revision that it writes")
	old(`desired_revision = desired_revision + 1`, all...)
	require.NoError(t, b.tx(func(tx pgx.Tx) error {
		locked, err := b.store.Lock(t.Context(), tx, all)
		require.NoError(t, err)
		var saved []workspace.Workspace
		for i, id := range all {
			w := locked[id]
			w.DesiredRevision += int64(i % 2)
			saved = append(saved, w)
		}
		return b.store.Save(t.Context(), tx, saved...)
	}))
	require.Equal(t, []uuid.UUID{all[2], all[4]}, b.takeToRender())
}

func TestChangeOfTheCellIsConsideredAtTheNextTick(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	w, err := b.insert(workspace.Creation{Name: "one"})
	require.NoError(t, err)
	due := func() (ids []uuid.UUID) {
		require.NoError(t, b.tx(func(tx pgx.Tx) (err error) {
			ids, err = (&postgres.IngestStores{}).In(tx).DueWorkspaces(t.Context(), map[int64]time.Time{7: time.Unix(-1, 0)})
			return err
		}))
		return ids
	}
	require.Empty(t, due())
	cell := agent.Settings{TerminationPatience: new(agent.Milliseconds(time.Second))}
	require.NoError(t, b.directory().ConfigureCell(t.Context(), cell))
	require.Equal(t, []uuid.UUID{w.ID}, due())
	require.Empty(t, due())
}

// TestWorkspaceCreatedDuringAChangeHasTheNewSettings creates a workspace with the old settings while an agent is
// configured.
func TestWorkspaceCreatedDuringAChangeHasTheNewSettings(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	require.NoError(t, d.ConfigureCell(t.Context(), agent.Settings{}))
	w, created, err := workspace.New(workspace.Creation{
		Name: "ide", ProjectID: 4, AgentID: 7, UserID: 9, Template: "default",
		Spec: workspace.Spec{Image: "ide:9"}, Now: start(),
	})
	require.NoError(t, err)
	require.NotEmpty(t, created)
	configured := make(chan error, 1)
	require.NoError(t, b.tx(func(tx pgx.Tx) error {
		if _, _, err := d.SettingsForCreation(t.Context(), tx, 7); err != nil {
			return err
		}
		go func() {
			_, err := d.ConfigureAgent(t.Context(), 7, agent.Settings{ResourceQuota: new(true)})
			configured <- err
		}()
		require.Eventually(t, func() bool {
			var waiting bool
			require.NoError(t, b.pool.QueryRow(t.Context(), `
				select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).
				Scan(&waiting))
			return waiting
		}, time.Minute, time.Millisecond, "the change waits for the creation")
		return b.store.Insert(t.Context(), tx, w)
	}))
	require.NoError(t, <-configured)
	require.Equal(t, []uuid.UUID{w.ID}, b.takeToRender())
}
