package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/pg"

	store "lockstep.internal/services/state/postgres"
)

// bed is what a benchmark stands on. What it opens is closed in reverse order, whatever happens.
type bed struct {
	// profile is where children write their CPU profiles, each with its name appended; empty for nowhere.
	profile string
	closing []func(ctx context.Context) error
}

// onClose adds what is to be closed before everything that was added earlier.
func (b *bed) onClose(fn func(ctx context.Context) error) { b.closing = append(b.closing, fn) }

// close closes everything, also when ctx is done, and adds to the error of the benchmark.
func (b *bed) close(ctx context.Context, err *error) {
	ctx = context.WithoutCancel(ctx)
	for _, fn := range slices.Backward(b.closing) {
		*err = errors.Join(*err, fn(ctx))
	}
}

// folder makes a temporary folder.
func (b *bed) folder() (string, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	b.onClose(func(context.Context) error { return os.RemoveAll(dir) })
	return dir, nil
}

// postgres starts a server that makes commits durable as one in production does.
func (b *bed) postgres(ctx context.Context) (*pg.Server, error) {
	server, err := pg.Start(ctx, pg.Options{Settings: map[string]string{"fsync": "on", "full_page_writes": "on"}})
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	b.onClose(server.Stop)
	return server, nil
}

// nats starts a server without accounts and returns a connection to it.
func (b *bed) nats() (*nats.Conn, error) {
	server, err := natsd.Start(natsd.Options{})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	b.onClose(func(context.Context) error { return server.Stop() })
	return b.connect(server.ClientURL())
}

func (b *bed) connect(url string, options ...nats.Option) (*nats.Conn, error) {
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	b.onClose(func(context.Context) error {
		conn.Close()
		return nil
	})
	return conn, nil
}

// streams makes the streams.
func (b *bed) streams(ctx context.Context, conn *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if err := topology.Ensure(ctx, js, benchCell, topology.Options{StorageBytes: 1 << 30}); err != nil {
		return nil, fmt.Errorf("make the streams: %w", err)
	}
	return js, nil
}

// pool opens a schema of the server, with these migrations if there are any.
func (b *bed) pool(ctx context.Context, url, schema string, migrations ...postgres.Migrations) (*pgxpool.Pool, error) {
	pool, err := postgres.Open(postgres.Config{URL: url, Schema: schema})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	b.onClose(func(context.Context) error {
		pool.Close()
		return nil
	})
	if len(migrations) == 0 {
		return pool, nil
	}
	if err := postgres.Migrate(ctx, pool, quiet(), migrations...); err != nil {
		return nil, fmt.Errorf("make the tables: %w", err)
	}
	return pool, nil
}

// state opens a schema with the tables of the state service and a directory of one of each.
func (b *bed) state(ctx context.Context, url, schema string) (*pgxpool.Pool, error) {
	migrations, err := store.Migrations()
	if err != nil {
		return nil, fmt.Errorf("make the tables: %w", err)
	}
	pool, err := b.pool(ctx, url, schema, migrations...)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{
		`insert into organizations (id, name) values (1, 'o')`,
		`insert into groups (id, organization_id, name) values (2, 1, 'g')`,
		`insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p')`,
		`insert into users (id, username) values (9, 'u')`,
		fmt.Sprintf(`insert into agents (id, project_id, name, token_hash, curve_public_key) values (%d, 4, 'a', 'a', 'X')`, benchAgent),
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("fill the directory: %w", err)
		}
	}
	return pool, nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// readLine reads a file of one line.
func readLine(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return strings.TrimSpace(string(raw)), nil
}
