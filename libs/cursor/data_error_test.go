package cursor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/deadletter"
)

// unstorable is a text that PostgreSQL refuses.
const unstorable = "\x00"

func (f *fixture) deadLetters() []string {
	f.t.Helper()
	dead, err := f.js.Stream(f.t.Context(), "DEAD")
	require.NoError(f.t, err)
	var texts []string
	for sequence := uint64(1); sequence <= dead.CachedInfo().State.LastSeq; sequence++ {
		m := f.dead(sequence)
		require.Contains(f.t, m.Header.Get(deadletter.ReasonHeader), "SQLSTATE")
		texts = append(texts, string(m.Data))
	}
	return texts
}

// commits records the calls of Committed.
type commits struct {
	mu        sync.Mutex
	sequences []uint64
	values    []string
}

func (c *commits) add(_ context.Context, sequence uint64, batch []cursor.Message[string]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequences = append(c.sequences, sequence)
	for i := range batch {
		c.values = append(c.values, batch[i].Value)
	}
}

func TestMessagesWithRefusedDataGoToDeadAndOthersAreHandledInOrder(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	var want, bad []string
	for n := range 50 {
		if n%17 == 0 || n == 49 {
			bad = append(bad, unstorable+strings.Repeat("!", n))
			b.publishText(bad[len(bad)-1])
		}
		b.publish(1)
	}
	want = numbers(50)
	var done commits
	b.run(b.consumer(func(c *cursor.Config[string]) { c.Committed = done.add }))
	b.awaitHandled(want)
	b.cursorAt(1, int64(len(want)+len(bad)))
	require.Equal(t, bad, b.deadLetters())
	b.publish(1)
	b.awaitHandled(numbers(51))

	done.mu.Lock()
	defer done.mu.Unlock()
	require.Equal(t, numbers(51), done.values, "each message is reported once")
	require.True(t, slices.IsSorted(done.sequences))
	require.Len(t, slices.Compact(slices.Clone(done.sequences)), len(done.sequences), "each commit moves the cursor")
}

func TestLastMessageWithRefusedDataMovesTheCursor(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publishText(unstorable)
	b.publishText(unstorable)
	b.run(b.consumer(nil))
	b.cursorAt(1, 2)
	require.Empty(t, b.handled())
	require.Len(t, b.deadLetters(), 2)
}

// A message is handled after the effects of all earlier ones: nothing goes to DEAD because its predecessor is missing
// in the transaction.
func TestMessagesThatFailOnlyTogetherAreHandled(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(20)
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if err := handle(ctx, tx, batch); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `
				SELECT 1 / (CASE WHEN $1 > 1 THEN 0 ELSE 1 END), -- more than one message
					1 / (CASE WHEN (SELECT count(*) FROM handled) < $2 THEN 0 ELSE 1 END) -- a predecessor is missing`,
				len(batch), int64(batch[0].Sequence))
			return err
		}
	}))
	b.awaitHandled(numbers(20))
	b.cursorAt(1, 20)
	require.Empty(t, b.deadLetters())
}

// orders is a table of which the handler of insertItem needs a row.
func (f *fixture) orders() {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), `
		CREATE TABLE orders (value text PRIMARY KEY);
		CREATE TABLE items (value text REFERENCES orders)`)
	require.NoError(f.t, err)
}

func (f *fixture) addOrder(value string) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), `INSERT INTO orders VALUES ($1)`, value)
	require.NoError(f.t, err)
}

func insertItem(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
	for i := range batch {
		if _, err := tx.Exec(ctx, `INSERT INTO items VALUES ($1)`, batch[i].Value); err != nil {
			return err
		}
	}
	return handle(ctx, tx, batch)
}

// clock counts the pauses of a consumer and moves with them.
type clock struct {
	mu     sync.Mutex
	time   time.Time
	pauses []time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *clock) sleep(_ context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses = append(c.pauses, d)
	c.time = c.time.Add(d)
	return nil
}

// pass moves the clock and returns the number of pauses.
func (c *clock) pass(d time.Duration) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(d)
	return len(c.pauses)
}

// After a restore of an older database, the rows that a message needs can be stored after it is read.
func TestViolatedConstraintIsRetriedAfterPauses(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.orders()
	b.publish(3)
	c := b.consumer(func(c *cursor.Config[string]) { c.Handle = insertItem })
	var clock clock
	stored := [][]string{{}, {"1"}, {"2"}, {"3"}} // in each pause: the second one ends the failures of message 1
	c.SetSleep(func(ctx context.Context, d time.Duration) error {
		for _, value := range stored[clock.pass(0)] {
			b.addOrder(value)
		}
		return clock.sleep(ctx, d)
	}, clock.now)
	b.run(c)
	b.awaitHandled(numbers(3))
	require.Empty(t, b.deadLetters())
	require.Equal(t, len(stored), clock.pass(0))
	require.Greater(t, clock.pauses[0]+clock.pauses[1], time.Second)
	require.LessOrEqual(t, clock.pauses[0]+clock.pauses[1], 3*time.Second)
}

// Many messages that are never accepted delay a stream by seconds in a minute, and those with other refused data by
// nothing.
func TestPausesAfterViolatedConstraintsAreBounded(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.orders()
	c := b.consumer(func(c *cursor.Config[string]) { c.Handle = insertItem })
	var clock clock
	c.SetSleep(clock.sleep, clock.now)
	b.publishText(unstorable)
	b.publish(20)
	b.run(c)
	b.cursorAt(1, 21)
	require.Len(t, b.deadLetters(), 21)
	require.Equal(t, 2, clock.pass(time.Minute))
	b.publish(2)
	b.cursorAt(1, 23)
	require.Len(t, b.deadLetters(), 23)
	require.Equal(t, 4, clock.pass(0))
}

func TestReaderThatEndsInAPauseLosesNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.orders()
	b.publish(1)
	configure := func(c *cursor.Config[string]) { c.Handle = insertItem }
	c := b.consumer(configure)
	paused := make(chan struct{})
	c.SetSleep(func(ctx context.Context, _ time.Duration) error {
		close(paused)
		<-ctx.Done()
		return ctx.Err()
	}, time.Now)
	stop := b.run(c)
	<-paused
	stop()
	require.Empty(t, b.deadLetters())
	b.addOrder("1")
	b.run(b.consumer(configure))
	b.awaitHandled(numbers(1))
	b.cursorAt(1, 1)
}

func TestSerializationFailuresAreRetriedForever(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(4)
	failures := 10
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if failures--; failures >= 0 {
				return &pgconn.PgError{Code: []string{"40001", "40P01", "57014", "53200"}[failures%4]}
			}
			return handle(ctx, tx, batch)
		}
	}))
	b.awaitHandled(numbers(4))
	require.Empty(t, b.deadLetters())
}

func TestReaderThatEndsWhileABatchIsDividedLosesNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(20)
	b.publishText(unstorable)
	b.publish(20)
	kills := 0
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if len(batch) < 20 && kills < 3 {
				kills++
				_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
				return errors.Join(errors.New("the session ended"), err)
			}
			return handle(ctx, tx, batch)
		}
	}))
	b.awaitHandled(numbers(40))
	b.cursorAt(1, 41)
	require.Equal(t, 3, kills)
	require.Equal(t, []string{unstorable}, b.deadLetters())
}

func TestEventIDThatPostgreSQLRefusesStopsNothing(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{
		"a zero byte": "a\x00b", "invalid UTF-8": "a\xffb", "a long id": strings.Repeat("x", 60_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			_, err := b.js.PublishMsg(t.Context(),
				&nats.Msg{Subject: subject, Data: []byte("a"), Header: nats.Header{"ce-id": {id}}})
			require.NoError(t, err)
			stop := b.run(b.consumer(nil))
			b.awaitHandled([]string{"a"})
			b.cursorAt(1, 1)
			stop()
			b.publish(1)
			b.run(b.consumer(nil)) // it recognizes the message
			b.awaitHandled([]string{"a", "1"})
			b.cursorAt(1, 2)
		})
	}
}

func TestReplaySkipsMessagesWithRefusedData(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(3)
	b.publishText(unstorable)
	b.publish(4)
	b.publishText(unstorable)
	require.Equal(t, cursor.ReplayResult{First: 1, Last: 9, Handled: 7, Skipped: 2},
		b.replay(b.consumer(nil), cursor.SequenceRange{To: 9}, noProgress))
	require.Equal(t, numbers(7), b.handled())
	require.Empty(t, b.deadLetters())

	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	result, err := b.consumer(nil).Replay(t.Context(), tx, cursor.SequenceRange{From: 4, To: 9}, noProgress)
	require.NoError(t, err)
	require.Equal(t, [2]uint64{4, 2}, [2]uint64{result.Handled, result.Skipped}, "also with savepoints")
	require.NoError(t, tx.Commit(t.Context()))
}
