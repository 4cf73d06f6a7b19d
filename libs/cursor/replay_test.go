package cursor_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/natstest"
)

func (f *fixture) replay(
	c *cursor.Consumer[string], stretch cursor.SequenceRange, progress func(uint64),
) cursor.ReplayResult {
	f.t.Helper()
	done, err := c.Replay(f.t.Context(), f.pool, stretch, progress)
	require.NoError(f.t, err)
	done.FirstStored = time.Time{}
	return done
}

func noProgress(uint64) {}

func TestReplayHandlesARangeAndMovesNoCursor(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(20)
	c := b.consumer(func(c *cursor.Config[string]) { c.Batch = 7 })
	var progress []uint64
	require.Equal(
		t, cursor.ReplayResult{First: 1, Last: 13, Handled: 13},
		b.replay(c, cursor.SequenceRange{From: 1, To: 13}, func(sequence uint64) { progress = append(progress, sequence) }),
	)
	require.Equal(t, numbers(13), b.handled())
	require.True(t, slices.IsSorted(progress))
	require.Equal(t, uint64(13), progress[len(progress)-1])
	require.GreaterOrEqual(t, len(progress), 2, "progress of each batch")
	require.Equal(
		t, cursor.ReplayResult{First: 14, Last: 20, Handled: 7},
		b.replay(c, cursor.SequenceRange{From: 14, To: 20}, noProgress),
	)
	require.Equal(t, numbers(20), b.handled())
	require.Equal(
		t, cursor.ReplayResult{Last: 20}, b.replay(c, cursor.SequenceRange{From: 21, To: 20}, noProgress),
		"an empty range is valid",
	)
	epoch, _ := b.cursor()
	require.Equal(t, int64(-1), epoch, "there is no cursor")
	stream, err := b.js.Stream(t.Context(), stream)
	require.NoError(t, err)
	require.LessOrEqual(t, stream.CachedInfo().State.Consumers, 3)
}

func TestReplaySkipsRejectedMessagesAndPublishesNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publishText("bad 0")
	b.publish(5)
	b.publishText("bad 1")
	b.publish(3)
	c := b.consumer(func(c *cursor.Config[string]) {
		c.Decode = refuseBad
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if err := handle(ctx, tx, batch); err != nil {
				return err
			}
			for i := range batch {
				if v := batch[i].Value; v == "3" || v == "8" {
					return &cursor.DeadLetterError{Sequence: batch[i].Sequence, Err: errors.New("violates a rule")}
				}
			}
			return nil
		}
	})
	require.Equal(
		t, cursor.ReplayResult{First: 1, Last: 10, Handled: 6, Skipped: 4},
		b.replay(c, cursor.SequenceRange{To: 10}, noProgress),
	)
	require.Equal(t, []string{"1", "2", "4", "5", "6", "7"}, b.handled())
	dead, err := b.js.Stream(t.Context(), "DEAD")
	require.NoError(t, err)
	require.Zero(t, dead.CachedInfo().State.Msgs)
}

func TestReplayOfAStreamWithDeletedMessages(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(20)
	stream, err := b.js.Stream(t.Context(), stream)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(6)))
	for _, sequence := range []uint64{9, 10, 18, 19, 20} {
		require.NoError(t, stream.DeleteMsg(t.Context(), sequence))
	}
	c := b.consumer(nil)
	done, err := c.Replay(t.Context(), b.pool, cursor.SequenceRange{To: 20}, noProgress)
	require.NoError(t, err)
	first, err := stream.GetMsg(t.Context(), 6)
	require.NoError(t, err)
	require.True(t, first.Time.Equal(done.FirstStored))
	require.Equal(t, [3]uint64{6, 17, 10}, [3]uint64{done.First, done.Last, done.Handled})
	require.Equal(t, []string{"6", "7", "8", "11", "12", "13", "14", "15", "16", "17"}, b.handled())

	require.NoError(t, stream.Purge(t.Context()))
	result := b.replay(c, cursor.SequenceRange{To: 20}, noProgress)
	require.Equal(t, cursor.ReplayResult{}, result, "everything has expired")
}

func TestReplayContinuesAfterAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(100)
	c := b.consumer(func(c *cursor.Config[string]) { c.Batch = 10 })
	restarts := 0
	done := b.replay(c, cursor.SequenceRange{To: 95}, func(sequence uint64) {
		if restarts < 2 && sequence >= uint64(20+30*restarts) {
			restarts++
			require.NoError(t, b.server.Restart())
		}
	})
	require.Equal(t, 2, restarts)
	require.Equal(t, cursor.ReplayResult{First: 1, Last: 95, Handled: 95}, done)
	require.Equal(t, numbers(95), b.handled(), "each once, in order")
}

func TestReplayFailsWhenTheStreamWasRestoredOrTheHandlerFails(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(5)
	_, err := b.consumer(nil).Replay(t.Context(), b.pool, cursor.SequenceRange{To: 6}, noProgress)
	require.ErrorContains(t, err, "it ends at 5, before 6")

	failing := b.consumer(func(c *cursor.Config[string]) {
		c.Batch, c.Linger = 2, timeout // all batches but the last are full
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if err := handle(ctx, tx, batch); err != nil {
				return err
			}
			if batch[len(batch)-1].Sequence >= 5 {
				return errors.New("the handler's reason")
			}
			return nil
		}
	})
	done, err := failing.Replay(t.Context(), b.pool, cursor.SequenceRange{To: 5}, noProgress)
	require.ErrorContains(t, err, "handle messages up to 5: the handler's reason")
	require.Equal(t, uint64(4), done.Last)
	require.Equal(t, numbers(4), b.handled())

	ctx, cancel := context.WithCancel(t.Context())
	_, err = b.consumer(
		func(c *cursor.Config[string]) { c.Batch = 1 },
	).Replay(ctx, b.pool, cursor.SequenceRange{To: 5}, func(uint64) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestReplayIntoATransactionIsInvisibleUntilItsCommit(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(9)
	failing := b.consumer(func(c *cursor.Config[string]) {
		c.Batch = 4
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			for i := range batch {
				if batch[i].Value == "6" {
					return &cursor.DeadLetterError{
						Sequence: batch[i].Sequence, Err: errors.Join(errors.New("no"), handle(ctx, tx, batch)),
					}
				}
			}
			return handle(ctx, tx, batch)
		}
	})
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	done, err := failing.Replay(t.Context(), tx, cursor.SequenceRange{To: 9}, noProgress)
	require.NoError(t, err)
	require.Equal(t, uint64(1), done.Skipped)
	require.Empty(t, b.handled())
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, slices.Delete(numbers(9), 5, 6), b.handled(), "changes of a rolled back savepoint are gone")
}

func TestLockPositionStopsTheConsumer(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	c := b.consumer(nil)
	require.NoError(t, postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
		at, err := c.LockPosition(t.Context(), tx)
		require.Equal(t, cursor.Position{}, at, "it has never read")
		return err
	}))
	b.publish(3)
	b.run(c)
	b.cursorAt(1, 3)
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	at, err := c.LockPosition(t.Context(), tx)
	require.NoError(t, err)
	require.Equal(t, cursor.Position{Epoch: 1, Sequence: 3}, at)
	b.publish(2)
	// pg_stat_activity shows that the reader waits for the row lock.
	require.Eventually(t, func() bool {
		var waiting int
		err := b.pool.QueryRow(
			t.Context(),
			`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`,
		).Scan(
			&waiting,
		)
		return err == nil && waiting == 1
	}, timeout, 5*time.Millisecond)
	at, err = c.Position(t.Context(), tx)
	require.NoError(t, err)
	require.Equal(t, uint64(3), at.Sequence)
	require.Equal(t, numbers(3), b.handled())
	require.NoError(t, tx.Rollback(t.Context()))
	b.cursorAt(1, 5)
	require.Equal(t, numbers(5), b.handled())
}

// Pending messages expire during the replay and are never delivered.
func TestReplayEndsWhenPendingMessagesExpire(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(40)
	stream, err := natstest.JetStream(t, b.server).Stream(t.Context(), stream)
	require.NoError(t, err)
	purged := false
	c := b.consumer(func(c *cursor.Config[string]) {
		c.Batch = 1
		c.Decode = func(m *cursor.Message[string]) error {
			if m.Sequence == 5 && !purged {
				purged = true
				if err := stream.Purge(context.WithoutCancel(t.Context())); err != nil {
					return err
				}
			}
			m.Value = strconv.FormatUint(m.Sequence, 10)
			return nil
		}
	})
	c.SetIdleTimeout(50 * time.Millisecond)
	done := b.replay(c, cursor.SequenceRange{To: 40}, noProgress)
	require.Less(t, done.Last, uint64(40))
	require.Equal(t, numbers(int(done.Last)), b.handled())
}
