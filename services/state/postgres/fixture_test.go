package postgres_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// fixture is a database with agents 7 and 8.
type fixture struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *postgres.Workspaces
}

// migrate creates the tables.
func migrate(url string) error {
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
	return libpostgres.Migrate(ctx, pool, logger, series...)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	url := pgtest.Prepared(t, migrate)
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := &fixture{t: t, pool: pool, store: &postgres.Workspaces{}}
	for _, sql := range []string{
		`insert into organizations (id, name) values (1, 'o')`,
		`insert into groups (id, organization_id, name) values (2, 1, 'g')`,
		`insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p'), (5, 1, 2, 'q')`,
		`insert into users (id, username) values (9, 'u'), (10, 'v')`,
		`insert into agents (id, project_id, name, token_hash, curve_public_key)
			values (7, 4, 'a', 'a', 'X'), (8, 4, 'b', 'b', 'X')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return b
}

func (b *fixture) tx(fn func(tx pgx.Tx) error) error {
	return libpostgres.InTx(b.t.Context(), b.pool, fn)
}

// insert inserts and publishes a workspace, as the API does.
func (b *fixture) insert(c workspace.Creation) (workspace.Workspace, error) {
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
	return w, b.tx(func(tx pgx.Tx) error {
		if err := b.store.Insert(b.t.Context(), tx, w); err != nil {
			return err
		}
		configured, err := (&postgres.IngestStores{}).In(tx).AgentConfigurations(b.t.Context(), []int64{w.AgentID})
		if err != nil {
			return err
		}
		messages, err := encoder().Workspaces(b.t.Context(), configured, workspace.Update{After: w, Events: created})
		if err != nil {
			return err
		}
		return outbox.Insert(b.t.Context(), tx, messages...)
	})
}

func encoder() publish.Encoder { return publish.Encoder{Cell: "local"} }

// inserted returns an inserted workspace.
func (b *fixture) inserted(c workspace.Creation) workspace.Workspace {
	b.t.Helper()
	w, err := b.insert(c)
	require.NoError(b.t, err)
	return w
}

// save changes a workspace.
func (b *fixture) save(id uuid.UUID, change func(w *workspace.Workspace)) workspace.Workspace {
	b.t.Helper()
	var after workspace.Workspace
	require.NoError(b.t, b.tx(func(tx pgx.Tx) error {
		locked, err := b.store.Lock(b.t.Context(), tx, []uuid.UUID{id, uuid.New()})
		if err != nil {
			return err
		}
		require.Len(b.t, locked, 1)
		after = locked[id]
		change(&after)
		return b.store.Save(b.t.Context(), tx, after)
	}))
	return after
}

// message is a row of the outbox.
type message struct {
	Subject string
	Header  map[string][]string
	Data    map[string]any
}

// outbox returns the messages in the outbox and removes them.
func (b *fixture) outbox() []message {
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
