package postgres_test

import (
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	libdirectory "lockstep.internal/libs/directory"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/pgtest"
)

// migrated connects to a database, runs a script and migrates it, twice.
func migrated(t *testing.T, script string) *pgxpool.Pool {
	t.Helper()
	url := pgtest.Database(t)
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), script)
	require.NoError(t, err)
	require.NoError(t, migrate(url))
	require.NoError(t, migrate(url))
	return pool
}

func TestReleasedSchemasAreUpgraded(t *testing.T) {
	t.Parallel()
	pgtest.Upgrades(t, migrated, useStores)
}

// TestUpgradeRendersWorkspacesAgain also checks that the default template has no sizes, which hide those of agents.
func TestUpgradeRendersWorkspacesAgain(t *testing.T) {
	t.Parallel()
	dump, err := os.ReadFile("testdata/released/17_c768bb9.sql")
	require.NoError(t, err)
	pool := migrated(t, string(dump))
	require.NoError(t, libpostgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		store := (&postgres.IngestStores{Workspaces: &postgres.Workspaces{}}).In(tx)
		first, err := store.LockToRender(t.Context(), 1, nil)
		require.NoError(t, err)
		second, err := store.LockToRender(t.Context(), 10, first)
		require.NoError(t, err)
		require.ElementsMatch(t, []uuid.UUID{
			uuid.MustParse("0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa"), uuid.MustParse("0199c0de-7a31-7c55-b1d4-3f2a9e10c6ab"),
		}, append(first, second...))
		return nil
	}))
	stored := &postgres.Directory{DB: pool, Now: start}
	template, err := stored.Template(t.Context(), 4, "default")
	require.NoError(t, err)
	want := workspace.Spec{Image: "registry.example/base:1", Command: []string{"sleep", "infinity"}}
	require.Equal(t, want, template.Spec)
}

// TestUpgradeEndsThePatienceOfTerminations upgrades while a workspace is terminating.
func TestUpgradeEndsThePatienceOfTerminations(t *testing.T) {
	t.Parallel()
	dump, err := os.ReadFile("testdata/released/17_c768bb9.sql")
	require.NoError(t, err)
	pool := migrated(t, string(dump)+`
		; update public.workspaces set desired_state = 'terminated', desired_state_since = '2026-03-02', reconsider_at = null,
			actual_state = 'terminating', termination = 'in_progress',
			apply_error_revision = null, apply_error_reason = null, apply_error_message = null
			where name = 'calm-heron'`)
	calm := uuid.MustParse("0199c0de-7a31-7c55-b1d4-3f2a9e10c6ab")
	var terminating workspace.Workspace
	require.NoError(t, libpostgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		store := (&postgres.IngestStores{Workspaces: &postgres.Workspaces{}}).In(tx)
		due, err := store.DueWorkspaces(t.Context(), map[int64]time.Time{7: start()})
		require.NoError(t, err)
		require.Contains(t, due, calm)
		locked, observations, err := store.LockWorkspaces(t.Context(), []uuid.UUID{calm})
		require.NoError(t, err)
		observations[calm].Clock = start()
		terminating, _ = locked[calm].Observe(*observations[calm])
		return nil
	}))
	require.Equal(t, actualstate.Error, terminating.ActualState)
	require.Equal(t, "ObjectsRemain", terminating.Reason)
}

// TestUpgradePublishesUsersAgainOnce upgrades from a version whose entries of users have no hash of the username.
func TestUpgradePublishesUsersAgainOnce(t *testing.T) {
	t.Parallel()
	dump, err := os.ReadFile("testdata/released/20_1f69a46.sql")
	require.NoError(t, err)
	b := &fixture{t: t, pool: migrated(t, string(dump)), store: &postgres.Workspaces{}}
	d := b.directory()
	_, _, err = d.BlockUser(t.Context(), 10, postgres.Spare{})
	require.NoError(t, err)
	_, err = d.CreateUser(t.Context(), "new", false)
	require.NoError(t, err)
	b.outbox()

	var upgrading sync.WaitGroup
	errs := make([]error, 4) // four replicas start at the same time
	for i := range errs {
		upgrading.Go(func() { errs[i] = d.UpgradeUserEntries(t.Context()) })
	}
	upgrading.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	entries := map[string][]any{}
	for _, m := range b.outbox() {
		require.NotContains(t, entries, m.Subject)
		entries[m.Subject] = []any{m.Data["username_hash"], m.Data["state"]}
	}
	require.Equal(t, map[string][]any{
		"lockstep.local.directory.user.9":  {libdirectory.HashUsername("ada"), "active"},
		"lockstep.local.directory.user.10": {libdirectory.HashUsername("ben"), "blocked"},
	}, entries)
	require.NoError(t, d.UpgradeUserEntries(t.Context()))
	require.Empty(t, b.outbox())
}

func useStores(t *testing.T, pool *pgxpool.Pool, _ string) {
	t.Helper()
	ctx := t.Context()
	workspaces := &postgres.Workspaces{}
	found, err := workspaces.List(ctx, pool, postgres.WorkspaceFilter{}, postgres.WorkspacePage{Size: 10})
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, "calm-heron", found[0].Name)
	require.Equal(t, "quota exceeded", found[0].ApplyError.Message)
	require.Equal(t, []string{"TOKEN"}, found[1].Spec.SecretEnv)
	require.NotZero(t, found[1].DesiredStateSince)

	ingest := &postgres.IngestStores{Workspaces: workspaces}
	orphans, err := ingest.Orphans(ctx, pool, nil, orphan.Orphan{}, 10)
	require.NoError(t, err)
	require.Len(t, orphans, 1)
	observations, err := ingest.OrphanObservations(ctx, pool, orphans)
	require.NoError(t, err)
	require.Equal(t, []orphan.Observation{{Replicas: 2, Revision: 5}}, observations)

	stored := &postgres.Directory{DB: pool, Now: start}
	agents, err := stored.Agents(ctx, nil, postgres.Page{Size: 10})
	require.NoError(t, err)
	require.Len(t, agents, 1)
	require.EqualValues(t, 2, agents[0].Objects)
	tokens, err := stored.Tokens(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, "laptop", tokens[0].Name)
	require.Zero(t, tokens[0].CreatedBy)
	_, err = stored.Subscribers(ctx, postgres.Page{Size: 10})
	require.NoError(t, err)
	_, err = stored.LastResyncs(ctx, []int64{7})
	require.NoError(t, err)
	_, err = stored.SilentSince(ctx, []int64{7})
	require.NoError(t, err)

	require.NoError(t, libpostgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		revoked, err := stored.RevokeToken(ctx, tx, tokens[0], postgres.Spare{})
		require.NoError(t, err)
		require.Equal(t, tokens[0].ID, revoked.Tokens[0].ID)
		entries, err := stored.LockEntries(ctx, tx)
		require.NoError(t, err)
		require.NotEmpty(t, entries)
		ended, err := ingest.In(tx).EndedResyncs(ctx)
		require.NoError(t, err)
		for _, r := range ended {
			_, err := ingest.In(tx).Judge(ctx, r)
			require.NoError(t, err)
		}
		clusters, err := ingest.In(tx).LockClusters(ctx, []int64{7})
		require.NoError(t, err)
		require.NoError(t, ingest.In(tx).SaveClusters(ctx, clusters))
		locked, observations, err := ingest.In(tx).LockWorkspaces(ctx, []uuid.UUID{found[1].ID})
		require.NoError(t, err)
		require.NotNil(t, observations[found[1].ID].Deployment)
		w := locked[found[1].ID]
		w.WarnedAgeDeadline = start().Add(time.Hour)
		require.NoError(t, ingest.In(tx).SaveWorkspaces(ctx, []workspace.Workspace{w}))
		orphans[0].Message, orphans[0].EndedAt = "deleted", start()
		return ingest.In(tx).SaveOrphan(ctx, orphans[0])
	}))
	saved, err := workspaces.Get(ctx, pool, postgres.WorkspaceReference{ID: found[1].ID})
	require.NoError(t, err)
	require.Equal(t, start().Add(time.Hour), saved.WarnedAgeDeadline)
}
