package cursor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

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

func TestDataErrorOfAConcurrentTransactionIsRetried(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(1)
	failures := 2
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if failures--; failures >= 0 {
				return &pgconn.PgError{Code: "23503", Message: "the parent was just deleted"}
			}
			return handle(ctx, tx, batch)
		}
	}))
	b.awaitHandled(numbers(1))
	require.Empty(t, b.deadLetters())
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
