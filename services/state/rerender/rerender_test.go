package rerender_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/rerender"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func prepare(url string) error {
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)
	pool, err := libpostgres.Connect(ctx, libpostgres.Config{URL: url}, logger)
	if err != nil {
		return err
	}
	defer pool.Close()
	series, err := postgres.Migrations()
	if err != nil {
		return err
	}
	if err := libpostgres.Migrate(ctx, pool, logger, series...); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, `
		insert into organizations (id, name) values (1, 'o');
		insert into groups (id, organization_id, name) values (2, 1, 'g');
		insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p');
		insert into users (id, username) values (9, 'u');
		insert into agents (id, project_id, name, token_hash, curve_public_key) values (7, 4, 'a', 'a', 'X')`)
	return err
}

func TestWorkspaceThatCannotBeRenderedDelaysNoOther(t *testing.T) {
	t.Parallel()
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, prepare)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	workspaces, directory := &postgres.Workspaces{}, &postgres.Directory{DB: pool, Now: time.Now}
	var all []uuid.UUID
	in := func(do func(tx pgx.Tx) error) { require.NoError(t, libpostgres.InTx(t.Context(), pool, do)) }
	in(func(tx pgx.Tx) error {
		for i := range 150 {
			w, _, err := workspace.New(workspace.Creation{
				Name: fmt.Sprintf("ide-%d", i), ProjectID: 4, AgentID: 7, UserID: 9, Template: "default",
				Spec: workspace.Spec{Image: "ide:9"}, Now: time.Unix(0, 0),
			})
			require.NoError(t, err)
			require.NoError(t, workspaces.Insert(t.Context(), tx, w))
			all = append(all, w.ID)
		}
		return directory.QueueRender(t.Context(), tx)
	})
	set := func(cpu string, ids ...uuid.UUID) {
		_, err := pool.Exec(t.Context(),
			`update workspaces set spec = jsonb_set(spec, '{cpu}', $2) where id = any($1)`, ids, cpu)
		require.NoError(t, err)
	}
	revisions := func(revision int) (ids []uuid.UUID) {
		rows, err := pool.Query(t.Context(), `select id from workspaces where desired_revision = $1 order by id`, revision)
		require.NoError(t, err)
		ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		require.NoError(t, err)
		return ids
	}
	var logs bytes.Buffer
	now := time.Unix(1e9, 0)
	r := &rerender.Renderer{
		Pool: pool, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		Ingest:       &ingest.Ingest{Logger: slog.New(slog.DiscardHandler), Encoder: publish.Encoder{Cell: "local"}},
		IngestStores: &postgres.IngestStores{Workspaces: workspaces}, Now: func() time.Time { return now },
	}
	failing := []uuid.UUID{all[0], all[60], all[61], all[149]}
	set(`"lots"`, failing...)
	require.NoError(t, r.All(t.Context(), pool))
	require.Equal(t, failing, revisions(1))
	require.Len(t, revisions(2), 146)
	for _, id := range failing {
		require.Equal(t, 1, strings.Count(logs.String(), "workspace_id="+id.String()), "%s", &logs)
	}
	require.Contains(t, logs.String(), `cpu \"lots\"`)

	// The next attempt waits. Other workspaces do not.
	set(`"1"`, failing...)
	in(func(tx pgx.Tx) error { return directory.QueueRender(t.Context(), tx) })
	require.NoError(t, r.All(t.Context(), pool))
	require.Equal(t, failing, revisions(1))
	require.Len(t, revisions(3), 146)
	now = now.Add(time.Minute)
	require.NoError(t, r.All(t.Context(), pool))
	require.Equal(t, failing, revisions(2))
	require.Equal(t, 4, strings.Count(logs.String(), "retry_in"))
	require.NoError(t, r.All(t.Context(), pool))
	require.Len(t, revisions(3), 146, "each once")

	pool.Close()
	require.Error(t, r.All(t.Context(), pool), "an outage ends the part")
}
