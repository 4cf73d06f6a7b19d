package postgres_test

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestStoreErrorIsNeverAnEmptyAnswer(t *testing.T) {
	t.Parallel()
	cfg := libpostgres.Config{URL: pgtest.Database(t)} // without any table
	pool, err := libpostgres.Connect(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	workspaces := &postgres.Workspaces{}
	ctx, page := t.Context(), postgres.Page{Size: 10}
	d := &postgres.Directory{DB: pool, Now: start}
	stores := &postgres.IngestStores{Workspaces: workspaces}
	for name, read := range map[string]func() error{
		"workspaces": func() error {
			_, err := workspaces.List(ctx, pool, postgres.WorkspaceFilter{}, postgres.WorkspacePage{Size: 10})
			return err
		},
		"workspace": func() error {
			_, err := workspaces.Get(ctx, pool, postgres.WorkspaceReference{ID: uuid.New()})
			return err
		},
		"workspace by key": func() error {
			_, err := workspaces.GetByIdempotencyKey(ctx, pool, 9, "k")
			return err
		},
		"orphans":        func() error { _, err := stores.Orphans(ctx, pool, nil, orphan.Orphan{}, 10); return err },
		"agent":          func() error { _, err := d.Agent(ctx, 7); return err },
		"agent by token": func() error { _, err := d.AgentByToken(ctx, 7, []byte("a")); return err },
		"agents":         func() error { _, err := d.Agents(ctx, nil, page); return err },
		"project":        func() error { _, err := d.Project(ctx, 4); return err },
		"organizations":  func() error { _, err := d.Organizations(ctx, 9, page); return err },
		"groups":         func() error { _, err := d.Groups(ctx, 1, page); return err },
		"users":          func() error { _, err := d.Users(ctx, page); return err },
		"user":           func() error { _, err := d.User(ctx, 1); return err },
		"user by name":   func() error { _, err := d.UserByName(ctx, "u"); return err },
		"user by token":  func() error { _, _, err := d.UserByToken(ctx, []byte("a")); return err },
		"role": func() error {
			_, err := d.Role(ctx, 9, directory.Scope{Kind: directory.ScopeProject, ID: 4})
			return err
		},
		"visible projects": func() error { _, err := d.VisibleProjects(ctx, 9); return err },
		"scope": func() error {
			return d.ScopeExists(ctx, directory.Scope{Kind: directory.ScopeProject, ID: 4})
		},
		"tokens":         func() error { _, err := d.Tokens(ctx, 9); return err },
		"subscribers":    func() error { _, err := d.Subscribers(ctx, page); return err },
		"templates":      func() error { _, err := d.Templates(ctx, 4); return err },
		"template":       func() error { _, err := d.Template(ctx, 4, "go"); return err },
		"configurations": func() error { _, err := d.AgentConfigurations(ctx, []int64{7}); return err },
		"resyncs":        func() error { _, err := d.LastResyncs(ctx, []int64{7}); return err },
	} {
		err := read()
		require.ErrorContains(t, err, "SQLSTATE 42P01", name)
		require.NotEqual(t, errcode.NotFound, fault.CodeOf(err), name)
	}
}
