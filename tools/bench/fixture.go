package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/pg"
)

// fixture starts what a benchmark needs. close stops it in reverse order.
type fixture struct {
	// profile is the beginning of the files for the CPU profiles of children; "" for none.
	profile string
	closing []func(ctx context.Context) error
}

// measureFunc adds figures to measured.
type measureFunc func(ctx context.Context, f *fixture, size Size, measured Measured)

// onFixture adapts a function that measures on a fixture. A failed check or must ends it with the
// error.
func onFixture(measure measureFunc) func(context.Context, Size) (Measured, error) {
	return func(ctx context.Context, size Size) (measured Measured, err error) {
		f, measured := &fixture{profile: size.Profile}, Measured{}
		defer f.close(ctx, &err)
		defer recoverFailure(&err)
		measure(ctx, f, size, measured)
		return measured, nil
	}
}

// failure is the panic of check.
type failure struct{ err error }

// check ends the benchmark when there is an error. Only the goroutine of the benchmark may call it.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns the value, or ends the benchmark like check.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func recoverFailure(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.err
	default:
		panic(r)
	}
}

// onClose adds a function that close calls before those that were added earlier.
func (f *fixture) onClose(fn func(ctx context.Context) error) { f.closing = append(f.closing, fn) }

// close stops everything, also when ctx is done, and joins the errors to err.
func (f *fixture) close(ctx context.Context, err *error) {
	ctx = context.WithoutCancel(ctx)
	for _, fn := range slices.Backward(f.closing) {
		*err = errors.Join(*err, fn(ctx))
	}
}

// background runs a function until the fixture is closed.
func (f *fixture) background(ctx context.Context, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	f.onClose(func(context.Context) error {
		cancel()
		return <-ended
	})
}

// folder makes a temporary folder.
func (f *fixture) folder() (string, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	f.onClose(func(context.Context) error { return os.RemoveAll(dir) })
	return dir, nil
}

// postgres starts a server with durable commits.
func (f *fixture) postgres(ctx context.Context) (*pg.Server, error) {
	server, err := pg.Start(ctx, pg.Options{Settings: map[string]string{"fsync": "on", "full_page_writes": "on"}})
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	f.onClose(server.Stop)
	return server, nil
}

// natsServer starts a server without accounts.
func (f *fixture) natsServer(options natsd.Options) (*natsd.Server, error) {
	server, err := natsd.Start(options)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	f.onClose(func(context.Context) error { return server.Stop() })
	return server, nil
}

func (f *fixture) connect(url string, options ...nats.Option) (*nats.Conn, error) {
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	f.onClose(func(context.Context) error {
		conn.Close()
		return nil
	})
	return conn, nil
}

// streams makes the streams of the cell.
func (f *fixture) streams(ctx context.Context, conn *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if err := topology.Ensure(ctx, js, benchCell, topology.Options{StorageBytes: 1 << 30}); err != nil {
		return nil, fmt.Errorf("make the streams: %w", err)
	}
	return js, nil
}

// jetStream starts NATS with the streams of the cell. It returns the URL, too.
func (f *fixture) jetStream(ctx context.Context) (*nats.Conn, jetstream.JetStream, string) {
	url := must(f.natsServer(natsd.Options{})).ClientURL()
	conn := must(f.connect(url))
	return conn, must(f.streams(ctx, conn)), url
}

// pool opens a schema of the server and applies the migrations.
func (f *fixture) pool(
	ctx context.Context, url, schema string, migrations ...postgres.Migrations,
) (*pgxpool.Pool, error) {
	pool, err := postgres.Open(postgres.Config{URL: url, Schema: schema})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	f.onClose(func(context.Context) error {
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

// stateTables opens a schema with the tables of the state service and one organization, group, project,
// user and agent.
func (f *fixture) stateTables(ctx context.Context, url, schema string) *pgxpool.Pool {
	pool := must(f.pool(ctx, url, schema, must(store.Migrations())...))
	for _, sql := range []string{
		`insert into organizations (id, name) values (1, 'o')`,
		`insert into groups (id, organization_id, name) values (2, 1, 'g')`,
		`insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p')`,
		`insert into users (id, username) values (9, 'u')`,
	} {
		must(pool.Exec(ctx, sql))
	}
	must(pool.Exec(ctx, `
		insert into agents (id, project_id, name, token_hash, curve_public_key) values ($1, 4, 'a', 'a', 'X')`, benchAgent))
	return pool
}

// httpClient returns a client with connections of its own.
func (f *fixture) httpClient() *http.Client {
	transport := &http.Transport{}
	f.onClose(func(context.Context) error {
		transport.CloseIdleConnections()
		return nil
	})
	return &http.Client{Transport: transport}
}

// benchProject is the project of the agents.
const benchProject = 4

// enterAgent publishes an agent to the directory, as the state service does.
func enterAgent(ctx context.Context, js jetstream.JetStream, a events.DirectoryAgent) error {
	subject := "agent/" + strconv.Itoa(a.AgentID)
	e, err := event.New(event.Attributes{
		Type: events.TypeDirectoryAgent, Source: event.ServiceSource(string(benchCell), "state"),
		Subject: subject, ID: subject, Time: time.Now(),
	}, a)
	if err != nil {
		return fmt.Errorf("publish agent %d: %w", a.AgentID, err)
	}
	m, err := event.Encode(e, benchCell.Directory("agent", strconv.Itoa(a.AgentID)))
	if err != nil {
		return fmt.Errorf("publish agent %d: %w", a.AgentID, err)
	}
	if _, err := js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("publish agent %d: %w", a.AgentID, err)
	}
	return nil
}

// lastSequence returns the last sequence of a stream.
func lastSequence(ctx context.Context, js jetstream.JetStream, name string) uint64 {
	return must(js.Stream(ctx, name)).CachedInfo().State.LastSeq
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
