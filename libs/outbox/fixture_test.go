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
	"github.com/prometheus/client_golang/prometheus"
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

// timeout limits operations of other processes on a busy machine.
const timeout = time.Minute

const stream = "FACTS"

// fixture is a database and a NATS server. Table entities counts the changes of each entity.
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

func (f *fixture) migrate() {
	f.t.Helper()
	migrations, err := outbox.Migrations()
	require.NoError(f.t, err)
	require.NoError(f.t, postgres.Migrate(f.t.Context(), f.pool, slog.New(slog.DiscardHandler), migrations))
	_, err = f.pool.Exec(f.t.Context(), `CREATE TABLE entities (name text PRIMARY KEY, changes int NOT NULL)`)
	require.NoError(f.t, err)
}

func (f *fixture) createStream() {
	f.t.Helper()
	_, err := f.js.CreateStream(
		f.t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"fact.>"}, AllowDirect: true},
	)
	require.NoError(f.t, err)
}

func (f *fixture) connect(url string) *pgxpool.Pool {
	f.t.Helper()
	pool, err := postgres.Connect(f.t.Context(), postgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(f.t, err)
	f.t.Cleanup(pool.Close)
	return pool
}

// publisher makes a publisher with a NATS connection of its own, as each replica has.
func (f *fixture) publisher(change func(*outbox.Config)) *outbox.Publisher {
	f.t.Helper()
	cfg := outbox.Config{
		Pool:         f.pool,
		Conn:         natstest.Connect(f.t, f.server, f.options...),
		Logger:       slog.New(slog.DiscardHandler),
		Interval:     100 * time.Millisecond,
		LockInterval: time.Millisecond,
		Retry:        retry.Policy{Min: time.Millisecond, Max: 20 * time.Millisecond},
	}
	if change != nil {
		change(&cfg)
	}
	p, err := outbox.New(cfg)
	require.NoError(f.t, err)
	return p
}

// run runs the publisher until the returned function is called or the test ends.
func (f *fixture) run(p *outbox.Publisher) func() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})
	f.t.Cleanup(stop)
	return stop
}

func message(name string, change int) *nats.Msg {
	return &nats.Msg{Subject: "fact." + name, Data: []byte(strconv.Itoa(change)), Header: nats.Header{"Kind": {"a", "b"}}}
}

// change changes an entity once, as services do: lock the row, insert the message, commit.
func (f *fixture) change(ctx context.Context, pool *pgxpool.Pool, name string) error {
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
		INSERT INTO entities VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET changes = entities.changes + 1
		RETURNING changes`, name).Scan(&change)
	return change, err
}

func (f *fixture) changes(name string, times int) {
	f.t.Helper()
	for range times {
		require.NoError(f.t, f.change(f.t.Context(), f.pool, name))
	}
}

// awaitEmpty waits until the outbox is empty.
func (f *fixture) awaitEmpty() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.waiting() == 0 }, timeout, 5*time.Millisecond)
}

func (f *fixture) waiting() int {
	var n int
	if err := f.pool.QueryRow(f.t.Context(), `SELECT count(*) FROM outbox`).Scan(&n); err != nil {
		return -1
	}
	return n
}

// onStream returns what each entity's subject holds, in the stream's order.
func (f *fixture) onStream() map[string][]string {
	f.t.Helper()
	found := make(map[string][]string)
	for _, m := range f.messages() {
		found[m.Subject] = append(found[m.Subject], string(m.Data))
	}
	return found
}

// messages returns what the stream holds.
func (f *fixture) messages() []*jetstream.RawStreamMsg {
	f.t.Helper()
	facts, err := f.js.Stream(f.t.Context(), stream)
	require.NoError(f.t, err)
	var all []*jetstream.RawStreamMsg
	for sequence := uint64(1); sequence <= facts.CachedInfo().State.LastSeq; sequence++ {
		m, err := facts.GetMsg(f.t.Context(), sequence)
		require.NoError(f.t, err)
		all = append(all, m)
	}
	return all
}

// awaitStream waits until the stream contains exactly these messages.
func (f *fixture) awaitStream(want map[string][]string) {
	f.t.Helper()
	require.EventuallyWithT(
		f.t, func(c *assert.CollectT) { assert.Equal(c, want, f.onStream()) }, timeout, 5*time.Millisecond,
	)
}

// restart takes NATS down and back.
func (f *fixture) restart() {
	f.t.Helper()
	require.NoError(f.t, f.server.Restart())
	natstest.Reconnected(f.t, f.js.Conn())
}

// changesUpTo returns "1" to "n".
func changesUpTo(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = strconv.Itoa(i + 1)
	}
	return texts
}

// terminateLockHolder terminates the publisher's database session. As after a machine failure, the publisher gets
// no notification.
func (f *fixture) terminateLockHolder() {
	f.t.Helper()
	var ended bool
	err := f.pool.QueryRow(f.t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&ended)
	require.NoError(f.t, err)
	require.True(f.t, ended)
}

// metric returns the value of a counter or gauge.
func metric(t *testing.T, registry prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	require.Fail(t, "no metric "+name)
	return 0
}
