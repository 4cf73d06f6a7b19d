package cursor_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what depends on another process on a busy machine.
const patience = time.Minute

const (
	stream  = "FACTS"
	subject = "lockstep.local.fact.x"
)

// fixture is one read model: the table handled has a row for each call of the handler with a
// message, in the order of the calls.
type fixture struct {
	t      *testing.T
	url    string
	pool   *pgxpool.Pool
	server *natsd.Server
	js     jetstream.JetStream
	next   int
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	return newFixtureOn(tb, pgtest.Database(tb))
}

func newFixtureOn(tb testing.TB, url string) *fixture {
	tb.Helper()
	b := &fixture{url: url, server: natstest.Server(tb)}
	b.t, _ = tb.(*testing.T)
	b.pool = connect(tb, url)
	migrations, err := cursor.Migrations()
	require.NoError(tb, err)
	require.NoError(tb, postgres.Migrate(tb.Context(), b.pool, slog.New(slog.DiscardHandler), migrations))
	_, err = b.pool.Exec(tb.Context(), `CREATE TABLE handled (position bigserial PRIMARY KEY, value text NOT NULL)`)
	require.NoError(tb, err)
	b.js = natstest.JetStream(tb, b.server)
	createStream(tb, b.js, stream, "lockstep.local.fact.>")
	return b
}

func createStream(tb testing.TB, js jetstream.JetStream, name, subjects string) {
	tb.Helper()
	_, err := js.CreateStream(
		tb.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}, AllowDirect: true},
	)
	require.NoError(tb, err)
}

func connect(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	pool, err := postgres.Connect(tb.Context(), postgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

func decode(m *cursor.Message[string]) error {
	m.Value = string(m.Data)
	return nil
}

func handle(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
	values := make([]string, len(batch))
	for i := range batch {
		values[i] = batch[i].Value
	}
	_, err := tx.Exec(
		ctx, `INSERT INTO handled (value) SELECT v FROM unnest($1::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n`,
		values,
	)
	return err
}

func (b *fixture) config(tb testing.TB) cursor.Config[string] {
	tb.Helper()
	return cursor.Config[string]{
		Name:         "model",
		Stream:       stream,
		Pool:         b.pool,
		JetStream:    natstest.JetStream(tb, b.server),
		Logger:       slog.New(slog.DiscardHandler),
		Cell:         "local",
		Service:      "test",
		Decode:       decode,
		Handle:       handle,
		Retry:        retry.Policy{Min: time.Millisecond, Max: 20 * time.Millisecond},
		LockInterval: time.Millisecond,
		StaleAfter:   time.Nanosecond,
	}
}

// consumer makes a consumer with a NATS connection of its own, as each replica has.
func (b *fixture) consumer(change func(*cursor.Config[string])) *cursor.Consumer[string] {
	b.t.Helper()
	cfg := b.config(b.t)
	if change != nil {
		change(&cfg)
	}
	c, err := cursor.New(cfg)
	require.NoError(b.t, err)
	return c
}

// run runs the consumer until the returned function is called or the test ends.
func (b *fixture) run(c *cursor.Consumer[string]) func() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
	b.t.Cleanup(stop)
	return stop
}

// publish publishes the next n numbers.
func (b *fixture) publish(n int) {
	b.t.Helper()
	require.NoError(b.t, b.tryPublish(n))
}

func (b *fixture) tryPublish(n int) error {
	for range n {
		b.next++
		if err := b.tryPublishText(strconv.Itoa(b.next)); err != nil {
			return err
		}
	}
	return nil
}

func (b *fixture) publishText(text string) {
	b.t.Helper()
	require.NoError(b.t, b.tryPublishText(text))
}

func (b *fixture) tryPublishText(text string) error {
	_, err := b.js.PublishMsg(
		b.t.Context(), &nats.Msg{Subject: subject, Data: []byte(text), Header: nats.Header{"ce-id": {"id-" + text}}},
	)
	return err
}

// restart takes NATS down and back.
func (b *fixture) restart() {
	b.t.Helper()
	require.NoError(b.t, b.server.Restart())
	natstest.Reconnected(b.t, b.js.Conn())
}

// snapshot copies the stream store, to be put back by restore.
func (b *fixture) snapshot() string {
	b.t.Helper()
	copied := filepath.Join(b.t.TempDir(), "copy")
	require.NoError(b.t, b.server.Snapshot(copied))
	natstest.Reconnected(b.t, b.js.Conn())
	return copied
}

func (b *fixture) restore(copied string) {
	b.t.Helper()
	require.NoError(b.t, b.server.Restore(copied))
	natstest.Reconnected(b.t, b.js.Conn())
}

func (b *fixture) handled() []string {
	rows, err := b.pool.Query(context.Background(), `SELECT value FROM handled ORDER BY position`)
	if err != nil {
		return nil
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil
	}
	return values
}

// reaches waits until exactly this was handled.
func (b *fixture) reaches(want []string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return len(b.handled()) >= len(want) }, patience, 5*time.Millisecond)
	require.Equal(b.t, want, b.handled())
}

// cursorAt waits until the cursor has reached the sequence.
func (b *fixture) cursorAt(epoch, sequence int64) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		e, s := b.cursor()
		return e == epoch && s == sequence
	}, patience, 5*time.Millisecond)
}

func (b *fixture) cursor() (int64, int64) {
	var epoch, sequence int64
	err := b.pool.QueryRow(
		context.Background(), `SELECT epoch, sequence FROM stream_cursors WHERE consumer = 'model'`,
	).Scan(&epoch, &sequence)
	if err != nil {
		return -1, -1
	}
	return epoch, sequence
}

// numbers are those up to n.
func numbers(n int) []string {
	texts := make([]string, 0, n)
	for i := 1; i <= n; i++ {
		texts = append(texts, strconv.Itoa(i))
	}
	return texts
}

// terminateLockHolder ends the reader's session in the database, as a vanished machine does; the
// reader is not told.
func (b *fixture) terminateLockHolder() {
	b.t.Helper()
	var ended bool
	err := b.pool.QueryRow(b.t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&ended)
	require.NoError(b.t, err)
	require.True(b.t, ended)
}
