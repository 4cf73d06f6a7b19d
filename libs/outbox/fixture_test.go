package outbox_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what depends on another process on a busy machine.
const patience = time.Minute

const stream = "FACTS"

// fixture is one service's database and NATS, with a table of entities that count their own
// changes.
type fixture struct {
	t      testing.TB
	url    string
	pool   *pgxpool.Pool
	server *natsd.Server
	js     jetstream.JetStream
	// options of the publishers' connections
	options []nats.Option
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	return newFixtureOn(tb, pgtest.Database(tb))
}

func newFixtureOn(tb testing.TB, url string) *fixture {
	tb.Helper()
	b := &fixture{t: tb, url: url, server: natstest.Server(tb)}
	b.pool = b.connect(url)
	b.migrate()
	b.js = natstest.JetStream(tb, b.server)
	b.createStream()
	return b
}

func (b *fixture) migrate() {
	b.t.Helper()
	migrations, err := outbox.Migrations()
	require.NoError(b.t, err)
	require.NoError(b.t, postgres.Migrate(b.t.Context(), b.pool, slog.New(slog.DiscardHandler), migrations))
	_, err = b.pool.Exec(b.t.Context(), `CREATE TABLE entities (name text PRIMARY KEY, changes int NOT NULL)`)
	require.NoError(b.t, err)
}

func (b *fixture) createStream() {
	b.t.Helper()
	_, err := b.js.CreateStream(
		b.t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"fact.>"}, AllowDirect: true},
	)
	require.NoError(b.t, err)
}

func (b *fixture) connect(url string) *pgxpool.Pool {
	b.t.Helper()
	pool, err := postgres.Connect(b.t.Context(), postgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(b.t, err)
	b.t.Cleanup(pool.Close)
	return pool
}

// publisher makes a publisher with a NATS connection of its own, as each replica has.
func (b *fixture) publisher(change func(*outbox.Config)) *outbox.Publisher {
	b.t.Helper()
	cfg := outbox.Config{
		Pool:         b.pool,
		Conn:         natstest.Connect(b.t, b.server, b.options...),
		Logger:       slog.New(slog.DiscardHandler),
		Interval:     100 * time.Millisecond,
		LockInterval: time.Millisecond,
		Retry:        retry.Policy{Min: time.Millisecond, Max: 20 * time.Millisecond},
	}
	if change != nil {
		change(&cfg)
	}
	p, err := outbox.New(cfg)
	require.NoError(b.t, err)
	return p
}

// run runs the publisher until the returned function is called or the test ends.
func (b *fixture) run(p *outbox.Publisher) func() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
	b.t.Cleanup(stop)
	return stop
}

func message(name string, change int) *nats.Msg {
	return &nats.Msg{Subject: "fact." + name, Data: []byte(strconv.Itoa(change)), Header: nats.Header{"Kind": {"a", "b"}}}
}

// change changes an entity once, as services do: lock the row, insert the message, commit.
func (b *fixture) change(ctx context.Context, pool *pgxpool.Pool, name string) error {
	return postgres.InTx(ctx, pool, func(tx pgx.Tx) error { return changeIn(ctx, tx, name) })
}

func changeIn(ctx context.Context, tx pgx.Tx, name string) error {
	change, err := changed(ctx, tx, name)
	if err != nil {
		return err
	}
	return outbox.Insert(ctx, tx, message(name, change))
}

// changed locks an entity and counts a change of it.
func changed(ctx context.Context, tx pgx.Tx, name string) (int, error) {
	var change int
	err := tx.QueryRow(ctx, `
		INSERT INTO entities VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET changes = entities.changes + 1 RETURNING changes`, name).Scan(&change)
	return change, err
}

func (b *fixture) changes(name string, times int) {
	b.t.Helper()
	for range times {
		require.NoError(b.t, b.change(b.t.Context(), b.pool, name))
	}
}

// published waits until the outbox is empty.
func (b *fixture) published() {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.waiting() == 0 }, patience, 5*time.Millisecond)
}

func (b *fixture) waiting() int {
	var n int
	if err := b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
		return -1
	}
	return n
}

// onStream returns what each entity's subject holds, in the stream's order.
func (b *fixture) onStream() map[string][]string {
	b.t.Helper()
	facts, err := b.js.Stream(b.t.Context(), stream)
	require.NoError(b.t, err)
	found := make(map[string][]string)
	for sequence := uint64(1); sequence <= facts.CachedInfo().State.LastSeq; sequence++ {
		m, err := facts.GetMsg(b.t.Context(), sequence)
		require.NoError(b.t, err)
		found[m.Subject] = append(found[m.Subject], string(m.Data))
	}
	return found
}

// holds waits until the stream holds this.
func (b *fixture) holds(want map[string][]string) {
	b.t.Helper()
	require.EventuallyWithT(
		b.t, func(c *assert.CollectT) { assert.Equal(c, want, b.onStream()) }, patience, 5*time.Millisecond,
	)
}

// restart takes NATS down and back.
func (b *fixture) restart() {
	b.t.Helper()
	require.NoError(b.t, b.server.Restart())
	natstest.Reconnected(b.t, b.js.Conn())
}

// upTo is what a subject holds after n changes: each once, in order.
func upTo(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = strconv.Itoa(i + 1)
	}
	return texts
}

// terminate ends a publisher's session in the database, as a vanished machine does; the publisher
// is not told.
func (b *fixture) terminateLockHolder() {
	b.t.Helper()
	var ended bool
	err := b.pool.QueryRow(b.t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&ended)
	require.NoError(b.t, err)
	require.True(b.t, ended)
}
