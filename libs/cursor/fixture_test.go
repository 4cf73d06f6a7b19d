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

// timeout limits operations of other processes on a busy machine.
const timeout = time.Minute

const (
	stream  = "FACTS"
	subject = "lockstep.local.fact.x"
)

// fixture is a consumer with a test table. Table handled has one row for each handled message, in the order of
// the calls.
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

func (f *fixture) config(tb testing.TB) cursor.Config[string] {
	tb.Helper()
	return cursor.Config[string]{
		Name:         "model",
		Stream:       stream,
		Pool:         f.pool,
		JetStream:    natstest.JetStream(tb, f.server),
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
func (f *fixture) consumer(change func(*cursor.Config[string])) *cursor.Consumer[string] {
	f.t.Helper()
	cfg := f.config(f.t)
	if change != nil {
		change(&cfg)
	}
	c, err := cursor.New(cfg)
	require.NoError(f.t, err)
	return c
}

// run runs the consumer until the returned function is called or the test ends.
func (f *fixture) run(c *cursor.Consumer[string]) func() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})
	f.t.Cleanup(stop)
	return stop
}

// publish publishes the next n numbers.
func (f *fixture) publish(n int) {
	f.t.Helper()
	require.NoError(f.t, f.tryPublish(n))
}

func (f *fixture) tryPublish(n int) error {
	for range n {
		f.next++
		if err := f.tryPublishText(strconv.Itoa(f.next)); err != nil {
			return err
		}
	}
	return nil
}

func (f *fixture) publishText(text string) {
	f.t.Helper()
	require.NoError(f.t, f.tryPublishText(text))
}

func (f *fixture) tryPublishText(text string) error {
	_, err := f.js.PublishMsg(
		f.t.Context(), &nats.Msg{Subject: subject, Data: []byte(text), Header: nats.Header{"ce-id": {"id-" + text}}},
	)
	return err
}

// restart restarts NATS.
func (f *fixture) restart() {
	f.t.Helper()
	require.NoError(f.t, f.server.Restart())
	natstest.Reconnected(f.t, f.js.Conn())
}

// snapshot copies the stream store. restore restores it.
func (f *fixture) snapshot() string {
	f.t.Helper()
	copied := filepath.Join(f.t.TempDir(), "copy")
	require.NoError(f.t, f.server.Snapshot(copied))
	natstest.Reconnected(f.t, f.js.Conn())
	return copied
}

func (f *fixture) restore(copied string) {
	f.t.Helper()
	require.NoError(f.t, f.server.Restore(copied))
	natstest.Reconnected(f.t, f.js.Conn())
}

func (f *fixture) handled() []string {
	rows, err := f.pool.Query(context.Background(), `SELECT value FROM handled ORDER BY position`)
	if err != nil {
		return nil
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil
	}
	return values
}

// awaitHandled waits until exactly these messages were handled.
func (f *fixture) awaitHandled(want []string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return len(f.handled()) >= len(want) }, timeout, 5*time.Millisecond)
	require.Equal(f.t, want, f.handled())
}

// cursorAt waits until the cursor has reached the sequence.
func (f *fixture) cursorAt(epoch, sequence int64) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		e, s := f.cursor()
		return e == epoch && s == sequence
	}, timeout, 5*time.Millisecond)
}

func (f *fixture) cursor() (int64, int64) {
	var epoch, sequence int64
	err := f.pool.QueryRow(
		context.Background(), `SELECT epoch, sequence FROM stream_cursors WHERE consumer = 'model'`,
	).Scan(&epoch, &sequence)
	if err != nil {
		return -1, -1
	}
	return epoch, sequence
}

// numbers returns "1" to "n".
func numbers(n int) []string {
	texts := make([]string, 0, n)
	for i := 1; i <= n; i++ {
		texts = append(texts, strconv.Itoa(i))
	}
	return texts
}

// terminateLockHolder terminates the reader's database session. As after a machine failure, the reader gets no
// notification.
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
