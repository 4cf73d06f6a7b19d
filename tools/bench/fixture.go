package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/pg"
)

const (
	benchCell  = topology.Cell("bench")
	benchAgent = int64(7)
	// benchProject is the project of the agents.
	benchProject = 4
	// loopback is a free port of this machine.
	loopback = "127.0.0.1:0"
	// connectTimeout bounds a connection attempt to NATS on a busy machine.
	connectTimeout = time.Minute
)

// fixture starts what a benchmark needs. Its methods end the benchmark with check.
type fixture struct {
	programs  string // folder of Lockstep's programs
	folder    string // a temporary one
	processes int
	closing   []func(ctx context.Context) error
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

// onFixture runs fn on a fixture. Then it stops everything in reverse order, also when ctx is done. A failed check ends
// fn with the error.
func onFixture(ctx context.Context, programs string, fn func(f *fixture)) (err error) {
	f := &fixture{programs: programs}
	defer func() {
		r := recover()
		if failed, is := r.(failure); is {
			err, r = failed.err, nil
		}
		for _, fn := range slices.Backward(f.closing) {
			err = errors.Join(err, fn(context.WithoutCancel(ctx)))
		}
		if r != nil {
			panic(r)
		}
	}()
	fn(f)
	return nil
}

// onClose adds a function that is called at the end, before those that were added earlier.
func (f *fixture) onClose(fn func(ctx context.Context) error) { f.closing = append(f.closing, fn) }

// onEnd is onClose for a function that cannot fail.
func (f *fixture) onEnd(fn func()) {
	f.onClose(func(context.Context) error {
		fn()
		return nil
	})
}

// background runs a function until the fixture is closed, or the returned function is called.
func (f *fixture) background(ctx context.Context, run func(ctx context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = run(ctx)
	}()
	stop = func() error {
		cancel()
		<-ended
		return err
	}
	f.onClose(func(context.Context) error { return stop() })
	return stop
}

// file returns the path of a file in the temporary folder of the fixture.
func (f *fixture) file(name string) string {
	if f.folder == "" {
		f.folder = must(os.MkdirTemp("", "lockstep-bench-"))
		f.onClose(func(context.Context) error { return os.RemoveAll(f.folder) })
	}
	return filepath.Join(f.folder, name)
}

// postgres starts a server with durable commits and returns its URL.
func (f *fixture) postgres(ctx context.Context) string {
	server := must(pg.Start(ctx, pg.Options{Settings: map[string]string{"fsync": "on", "full_page_writes": "on"}}))
	f.onClose(server.Stop)
	return server.URL()
}

func (f *fixture) nats(options natsd.Options) *natsd.Server {
	server := must(natsd.Start(options))
	f.onClose(func(context.Context) error { return server.Stop() })
	return server
}

func (f *fixture) connect(url string, options ...nats.Option) *nats.Conn {
	conn := must(nats.Connect(url, append([]nats.Option{nats.Timeout(connectTimeout)}, options...)...))
	f.onEnd(conn.Close)
	return conn
}

// jetStream starts NATS without accounts and with the streams of the cell. It returns the URL, too.
func (f *fixture) jetStream(ctx context.Context) (*nats.Conn, jetstream.JetStream, string) {
	url := f.nats(natsd.Options{}).ClientURL()
	conn := f.connect(url)
	return conn, ensureStreams(ctx, conn), url
}

// accounts starts NATS with the accounts of a cell and with its streams. It returns JetStream as the state service, and
// the folder with the keys.
func (f *fixture) accounts(ctx context.Context) (js jetstream.JetStream, url, keys string) {
	keys = f.file("nats")
	report := must(natsauth.Init(keys, natsauth.Options{Cell: benchCell}))
	url = f.nats(natsd.Options{ConfigFile: report.ConfigFile}).ClientURL()
	key := must(nats.NkeyOptionFromSeed(natsauth.SeedFile(keys, natsauth.PrincipalState)))
	inbox := nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalState))
	return ensureStreams(ctx, f.connect(url, key, inbox)), url, keys
}

func ensureStreams(ctx context.Context, conn *nats.Conn) jetstream.JetStream {
	js := must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000)))
	check(topology.Ensure(ctx, js, benchCell, topology.Options{StorageBytes: 1 << 30}))
	return js
}

// createConsumers creates the consumers that services request, as the state service does.
func (f *fixture) createConsumers(ctx context.Context, js jetstream.JetStream) {
	responder := &consumers.Responder{
		Direct: consumers.Direct{JetStream: js, Cell: benchCell, Service: natsauth.PrincipalState}, Logger: quiet(),
	}
	f.background(ctx, func(ctx context.Context) error { return responder.Run(ctx, func() {}) })
}

// system starts all of Lockstep with its programs.
func (f *fixture) system(ctx context.Context, options stack.Options) *stack.Stack {
	options.Programs = f.programs
	system := must(stack.Start(ctx, options))
	f.onClose(func(context.Context) error { return system.Stop() })
	return system
}

// pool opens a schema of the server and applies the migrations.
func (f *fixture) pool(ctx context.Context, url, schema string, migrations ...postgres.Migrations) *pgxpool.Pool {
	pool := must(postgres.Open(postgres.Config{URL: url, Schema: schema}))
	f.onEnd(pool.Close)
	if len(migrations) > 0 {
		check(postgres.Migrate(ctx, pool, quiet(), migrations...))
	}
	return pool
}

// stateTables opens a schema with the tables of the state service and one organization, group, project,
// user and agent.
func (f *fixture) stateTables(ctx context.Context, url, schema string) *pgxpool.Pool {
	pool := f.pool(ctx, url, schema, must(store.Migrations())...)
	for _, sql := range []string{
		`insert into organizations (id, name) values (1, 'o')`,
		`insert into groups (id, organization_id, name) values (2, 1, 'g')`,
		`insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p')`,
		`insert into users (id, username) values (9, 'u')`,
		`insert into agents (id, project_id, name, token_hash, curve_public_key) values (7, 4, 'a', 'a', 'X')`,
	} {
		must(pool.Exec(ctx, sql))
	}
	return pool
}

// httpClient returns a client with connections of its own.
func (f *fixture) httpClient() *http.Client {
	transport := &http.Transport{DisableCompression: true}
	f.onEnd(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// credentials writes the credentials of an agent for a server without accounts and returns the file.
func (f *fixture) credentials(agent int64, token, url string) string {
	key := must(seal.GenerateKey())
	file := f.file("agent.json")
	check(natsauth.WriteAgentCredentials(file, natsauth.AgentCredentials{
		ServerURLs: []string{url}, Cell: benchCell, AgentID: agent, Token: token,
		CurveSeed: must(key.Seed()).Reveal(), SealerKey: key.Public(),
	}))
	return file
}

// publishAgent publishes an agent to the directory, as the state service does.
func publishAgent(ctx context.Context, js jetstream.JetStream, a events.DirectoryAgent) {
	id := strconv.Itoa(a.AgentID)
	publishEvent(ctx, js, benchCell.Directory("agent", id), events.TypeDirectoryAgent, "agent/"+id, a)
}

// publishEvent publishes an event of the state service.
func publishEvent(ctx context.Context, js jetstream.JetStream, subject, eventType, id string, data any) {
	e := must(event.New(event.Attributes{
		Type: eventType, Source: event.ServiceSource(string(benchCell), "state"), Subject: id, ID: id, Time: time.Now(),
	}, data))
	must(js.PublishMsg(ctx, must(event.Encode(e, subject))))
}

// published waits until all asynchronous publishes are acknowledged.
func published(ctx context.Context, js jetstream.JetStream) {
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		check(fmt.Errorf("publish: %w", context.Cause(ctx)))
	}
}

// acknowledged waits for the acknowledgement of a publish and returns the sequence of the message.
func acknowledged(ctx context.Context, future jetstream.PubAckFuture) uint64 {
	select {
	case ack := <-future.Ok():
		return ack.Sequence
	case err := <-future.Err():
		check(fmt.Errorf("publish: %w", err))
	case <-ctx.Done():
		check(fmt.Errorf("publish: %w", context.Cause(ctx)))
	}
	return 0
}

// lastSequence returns the last sequence of a stream.
func lastSequence(ctx context.Context, js jetstream.JetStream, name string) uint64 {
	return must(js.Stream(ctx, name)).CachedInfo().State.LastSeq
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// readLine reads a file of one line.
func readLine(path string) string { return strings.TrimSpace(string(must(os.ReadFile(path)))) }
