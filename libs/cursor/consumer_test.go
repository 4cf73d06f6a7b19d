package cursor_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/tools/testkit/pg"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestEveryMessageIsHandledOnceInStreamOrder(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(20)
	var calls atomic.Int64
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Batch = 7
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			calls.Add(1)
			require.LessOrEqual(t, len(batch), 7)
			require.True(
				t,
				slices.IsSortedFunc(batch, func(a, b cursor.Message[string]) int { return int(a.Sequence) - int(b.Sequence) }),
			)
			return handle(ctx, tx, batch)
		}
	}))
	b.run(b.consumer(nil)) // a second replica changes nothing
	b.publish(480)
	b.awaitHandled(numbers(500))
	b.cursorAt(1, 500)
}

func TestConsumerThatIsBehindReadsFullBatches(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(250)
	var sizes []int // of the reader alone, until it has ended
	stop := b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Batch, c.Linger = 100, timeout
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			sizes = append(sizes, len(batch))
			return handle(ctx, tx, batch)
		}
	}))
	b.awaitHandled(numbers(250))
	stop()
	require.Equal(t, []int{100, 100, 50}, sizes)
}

func TestCrashAfterCommitRepeatsNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	c := b.consumer(func(c *cursor.Config[string]) { c.Batch = 5 })
	var crashes atomic.Int64
	c.OnCommitted(func() error {
		if crashes.Add(1) <= 4 {
			return errors.New("crashed")
		}
		return nil
	})
	b.publish(50)
	b.run(c)
	b.awaitHandled(numbers(50))
	require.Greater(t, crashes.Load(), int64(4), "number of simulated crashes")
}

func TestFailedBatchIsRolledBackAndRetried(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	failures := 3
	reported := make(chan error, 10)
	committed := make(chan uint64, 10)
	var c *cursor.Consumer[string]
	c = b.consumer(func(cfg *cursor.Config[string]) {
		cfg.Committed = func(_ context.Context, sequence uint64, _ []cursor.Message[string]) { committed <- sequence }
		cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if err := handle(ctx, tx, batch); err != nil {
				return err
			}
			reported <- c.Check(ctx)
			if failures--; failures >= 0 {
				return errors.New("the handler's reason")
			}
			return nil
		}
	})
	b.publish(3)
	b.run(c)
	b.awaitHandled(numbers(3))
	require.NoError(t, <-reported)
	require.ErrorContains(t, <-reported, "the handler's reason")
	for sequence := range committed {
		if sequence == 3 {
			break
		}
	}
	b.cursorAt(1, 3)
	require.NoError(t, c.Check(t.Context()))
}

func TestSupersededReaderCommitsNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	paused, resume := make(chan struct{}), make(chan struct{})
	waits := make(chan struct{}, 10)
	first := b.consumer(func(c *cursor.Config[string]) {
		c.Pool = connect(t, b.url)
		pause := true
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if err := handle(ctx, tx, batch); err != nil {
				return err
			}
			if pause {
				pause = false
				close(paused)
				<-resume
			}
			return nil
		}
	})
	first.OnWaiting(func() { waits <- struct{}{} })
	b.run(first)
	<-waits
	b.publish(3)
	<-paused
	b.run(b.consumer(nil))
	b.terminateLockHolder()
	b.publish(2)
	b.awaitHandled(numbers(5))
	close(resume)
	<-waits // the first reader has detected the lost lock and waits for it again
	b.publish(2)
	b.awaitHandled(numbers(7))
}

func TestCursorMovedByAnotherReaderIsNotMovedBack(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.run(b.consumer(nil))
	b.publish(3)
	b.cursorAt(1, 3)
	var id string
	var stored int64
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT event_id, stored_at FROM stream_cursors`).Scan(&id, &stored))
	require.Equal(t, "id-3", id)
	// An operator resets the cursor.
	_, err := b.pool.Exec(t.Context(), `UPDATE stream_cursors SET sequence = 0, epoch = epoch + 1`)
	require.NoError(t, err)
	b.publish(1)
	b.awaitHandled([]string{"1", "2", "3", "1", "2", "3", "4"})
	b.cursorAt(2, 4)
}

func TestAnotherReplicaTakesOver(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stops := []func(){b.run(b.consumer(nil)), b.run(b.consumer(nil))}
	b.publish(3)
	b.awaitHandled(numbers(3))
	stops[0]()
	b.publish(3)
	b.awaitHandled(numbers(6))
	stops[1]()
}

func TestStandbyIsHealthyAfterAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	database, err := pg.Start(t.Context(), pg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, database.Stop(context.Background())) })
	b := newFixtureOn(t, database.URL())
	replicas := []*cursor.Consumer[string]{b.consumer(nil), b.consumer(nil)}
	await := func(healthy bool) {
		t.Helper()
		for _, replica := range replicas {
			require.Eventually(t, func() bool { return (replica.Check(t.Context()) == nil) == healthy }, timeout,
				time.Millisecond)
		}
	}
	for _, replica := range replicas {
		b.run(replica)
	}
	b.publish(3)
	b.awaitHandled(numbers(3))
	database.Kill()
	b.publish(3)
	await(false)
	require.NoError(t, database.Restart(t.Context()))
	b.awaitHandled(numbers(6))
	await(true)
}

func TestPartitionsAreIndependent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for _, partition := range []string{"a", "b"} {
		b.run(b.consumer(func(c *cursor.Config[string]) {
			c.Name = partition
			c.Subjects = []string{"lockstep.local.fact." + partition + ".>"}
			c.Decode = func(m *cursor.Message[string]) error {
				m.Value = partition + string(m.Data)
				return nil
			}
		}))
	}
	for i := range 6 {
		_, err := b.js.Publish(t.Context(), "lockstep.local.fact."+[]string{"a", "b", "c"}[i%3]+".x", []byte(strconv.Itoa(i)))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		found := b.handled()
		slices.Sort(found)
		return slices.Equal(found, []string{"a0", "a3", "b1", "b4"})
	}, timeout, timeout/1000)
}

// restarts collects the restarts of a consumer.
func restarts(into chan<- cursor.Restart) func(*cursor.Config[string]) {
	return func(c *cursor.Config[string]) {
		c.Restarted = func(_ context.Context, _ pgx.Tx, r cursor.Restart) error {
			into <- r
			return nil
		}
	}
}

func TestRestoredStreamIsReadFromTheStart(t *testing.T) {
	t.Parallel()
	const shorter = "the stream ends at 3, before the cursor at 5"
	const replaced = "message 5 has event id id-5 and was stored at"
	for name, test := range map[string]struct {
		running bool // the consumer runs during the restore
		publish int  // messages after the restore
		reason  string
		handled []string // after 1 to 5
	}{
		"shorter, at once":                  {running: true, reason: shorter, handled: numbers(3)},
		"shorter, on start":                 {reason: shorter, handled: numbers(3)},
		"grown to the cursor, same events":  {publish: 2, reason: replaced, handled: numbers(5)},
		"grown past the cursor, on restart": {publish: 3, reason: replaced, handled: numbers(6)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			seen := make(chan cursor.Restart, 10)
			stop := b.run(b.consumer(restarts(seen)))
			require.Equal(t, int64(1), (<-seen).Epoch)
			b.publish(3)
			copied := b.snapshot()
			b.publish(2)
			b.awaitHandled(numbers(5))
			if !test.running {
				stop()
			}
			b.restore(copied)
			b.next = 3
			b.publish(test.publish)
			if !test.running {
				b.run(b.consumer(restarts(seen)))
			}
			r := <-seen
			require.Equal(t, int64(2), r.Epoch)
			require.Contains(t, r.Reason, test.reason)
			b.awaitHandled(append(numbers(5), test.handled...))
			require.Empty(t, seen)
		})
	}
}

func TestRecreatedStreamIsReadFromTheStart(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	seen := make(chan cursor.Restart, 10)
	refusals := 2
	c := b.consumer(func(c *cursor.Config[string]) {
		c.Restarted = func(_ context.Context, _ pgx.Tx, r cursor.Restart) error {
			if refusals--; refusals >= 0 {
				return errors.New("not this time")
			}
			seen <- r
			return nil
		}
	})
	b.run(c)
	require.Equal(t, int64(1), (<-seen).Epoch, "repeated until it succeeds, in one epoch")
	b.publish(2)
	b.awaitHandled(numbers(2))
	require.NoError(t, b.js.DeleteStream(t.Context(), stream)) // the connection stays
	createStream(t, b.js, stream, "lockstep.local.fact.>")
	require.Equal(t, int64(2), (<-seen).Epoch)
	b.publish(1)
	b.awaitHandled(numbers(3))
	b.cursorAt(2, 1)
}

func TestReadingContinuesAfterAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	c := b.consumer(nil)
	b.run(c)
	b.publish(3)
	b.awaitHandled(numbers(3))
	b.server.Down()
	require.Eventually(t, func() bool { return c.Check(t.Context()) != nil }, timeout, timeout/10000)
	b.restart()
	b.publish(3)
	b.awaitHandled(numbers(6))
	b.cursorAt(1, 6)
	require.Eventually(t, func() bool { return c.Check(t.Context()) == nil }, timeout, timeout/10000)
}

func TestAnOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	registry := prometheus.NewRegistry()
	metrics, err := cursor.NewMetrics(registry)
	require.NoError(t, err)
	var log bytes.Buffer
	stop := b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Metrics, c.Logger = metrics, slog.New(slog.NewTextHandler(&log, nil))
	}))
	b.publish(3)
	b.awaitHandled(numbers(3))
	b.server.Down()
	require.Eventually(t, func() bool { return failures(t, registry) >= 5 }, timeout, timeout/10000)
	stop()
	require.Equal(t, 1, strings.Count(log.String(), "consumer failed"), log.String())
}

// failures is how often consumers have failed.
func failures(t *testing.T, registry prometheus.Gatherer) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "lockstep_cursor_failures_total" {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

func TestReadingContinuesAfterRestartsOfNATS(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.run(b.consumer(func(c *cursor.Config[string]) { c.Batch = 3 }))
	b.publish(100)
	b.restart()
	b.publish(100)
	b.awaitHandled(numbers(200))
	b.cursorAt(1, 200)
}

func TestReadingContinuesAfterARestartOfPostgreSQL(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	b := newFixtureOn(t, server.URL())
	c := b.consumer(func(c *cursor.Config[string]) { c.Batch = 3 })
	b.run(c)
	b.publish(50)
	var publisher errgroup.Group
	publisher.Go(func() error { return b.tryPublish(100) })
	server.Kill()
	require.NoError(t, publisher.Wait())
	// No database takes these: the consumer fails.
	publisher.Go(func() error { return b.tryPublish(50) })
	require.Eventually(t, func() bool { return c.Check(t.Context()) != nil }, timeout, timeout/10000)
	require.NoError(t, server.Restart(t.Context()))
	require.NoError(t, publisher.Wait())
	b.awaitHandled(numbers(200))
}

func TestNewReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := cursor.New(cursor.Config[string]{Batch: -1})
	for _, part := range []string{
		"name", "stream", "pool", "JetStream", "logger", "cell", "service", "decoder", "handler", "negative",
	} {
		require.ErrorContains(t, err, part)
	}
}
