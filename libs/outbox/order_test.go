package outbox_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestOrderOnASubjectIsTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.run(b.publisher(func(c *outbox.Config) { c.Batch = 7 }))
	b.run(b.publisher(nil))
	var writers errgroup.Group
	const entities, writersPerEntity, changes = 3, 4, 15
	for entity := range entities {
		for range writersPerEntity {
			writers.Go(func() error {
				for range changes {
					if err := b.change(t.Context(), b.pool, strconv.Itoa(entity)); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	require.NoError(t, writers.Wait())
	b.awaitEmpty()
	for entity := range entities {
		require.Equal(t, changesUpTo(writersPerEntity*changes), b.onStream()["fact."+strconv.Itoa(entity)])
	}
}

func TestSupersededPublisherDoesNotRepublish(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	paused, resume := make(chan struct{}), make(chan struct{})
	first := b.publisher(func(c *outbox.Config) { c.Pool = b.connect(b.url) })
	var once sync.Once
	first.OnPublish(func(_ context.Context, _ string, id int64) {
		if id == 2 {
			once.Do(func() {
				close(paused)
				<-resume
			})
		}
	})
	firstWaits := make(chan struct{}, 1)
	first.OnWaiting(func() {
		select {
		case firstWaits <- struct{}{}:
		default:
		}
	})
	stopFirst := b.run(first)
	b.changes("x", 1)
	b.awaitEmpty()
	b.changes("x", 1)
	<-paused // the publisher has read change 2 and knows the subject's last sequence

	b.terminateLockHolder()
	b.changes("x", 3)
	stopSecond := b.run(b.publisher(nil))
	b.awaitEmpty()
	require.Equal(t, changesUpTo(5), b.onStream()["fact.x"])
	stopSecond()

	for len(firstWaits) > 0 {
		<-firstWaits
	}
	close(resume) // sends change 2, again and too late
	b.changes("x", 1)
	<-firstWaits
	b.awaitEmpty()
	stopFirst()
	require.Equal(t, changesUpTo(6), b.onStream()["fact.x"], "change 2 did not come again after 5")
}

func TestCrashBetweenAcknowledgementAndRemovalRepeatsNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	p := b.publisher(nil)
	crashes := 3
	p.OnAcknowledged(func() error {
		if crashes--; crashes >= 0 {
			return errors.New("crashed")
		}
		return nil
	})
	b.changes("x", 5)
	b.changes("y", 2)
	b.run(p)
	b.awaitEmpty()
	require.Negative(t, crashes, "it did crash")
	require.Equal(t, map[string][]string{"fact.x": changesUpTo(5), "fact.y": changesUpTo(2)}, b.onStream())
}

func TestCrashedPublisherIsReplacedWithoutLossOrRepetition(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	first := b.publisher(nil)
	crash, crashed := make(chan struct{}), make(chan struct{})
	first.OnAcknowledged(func() error { // simulates a crash between acknowledgement and removal
		close(crashed)
		<-crash
		return errors.New("crashed")
	})
	stopFirst := b.run(first)
	b.changes("x", 3)
	<-crashed
	b.run(b.publisher(nil))
	b.changes("x", 2)
	b.terminateLockHolder() // the database detects the lost connection
	b.awaitEmpty()
	require.Equal(t, changesUpTo(5), b.onStream()["fact.x"])
	close(crash)
	stopFirst()
}

func TestOpenTransactionDelaysNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	// Two open transactions: one in another database of the same server, one in this database after an insert.
	elsewhere, err := pgx.Connect(t.Context(), pgtest.Database(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, elsewhere.Close(context.Background())) })
	_, err = elsewhere.Exec(t.Context(), `BEGIN; SELECT pg_current_xact_id()`)
	require.NoError(t, err)
	open, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, changeIn(t.Context(), open, "slow"))

	b.run(b.publisher(nil))
	b.changes("x", 3)
	b.awaitEmpty()
	require.Equal(t, map[string][]string{"fact.x": changesUpTo(3)}, b.onStream())

	require.NoError(t, open.Commit(t.Context()))
	b.awaitEmpty()
	require.Equal(
		t, map[string][]string{"fact.x": changesUpTo(3), "fact.slow": changesUpTo(1)}, b.onStream(),
		"a row that commits later with a lower id is published",
	)
}

func TestFailingSubjectDelaysNoOther(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	require.NoError(t, postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
		for i := range 20 {
			m := message("lost", i+1)
			m.Subject = "nowhere." + strconv.Itoa(i)
			if err := outbox.Insert(t.Context(), tx, m); err != nil {
				return err
			}
		}
		return nil
	}))
	b.run(b.publisher(func(c *outbox.Config) { c.Batch = 4 }))
	b.changes("x", 3)
	require.Eventually(t, func() bool { return len(b.onStream()["fact.x"]) == 3 }, timeout, 5*time.Millisecond)
	require.Eventually(t, func() bool { return b.waiting() == 20 }, timeout, time.Millisecond)

	_, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATE", Subjects: []string{"nowhere.>"}})
	require.NoError(t, err)
	b.awaitEmpty()
}

func TestMessageOfAnotherWriterIsNotTreatedAsPublished(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	_, err := b.js.PublishMsg(t.Context(), message("x", 0))
	require.NoError(t, err)
	b.run(b.publisher(nil))
	b.changes("x", 2)
	b.awaitEmpty()
	require.Equal(t, []string{"0", "1", "2"}, b.onStream()["fact.x"])
}
