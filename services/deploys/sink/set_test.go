package sink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/tools/testkit/natstest"
)

var errUnavailable = errors.New("the destination is unavailable")

func TestNewSinkStartsWithNextOrOldestFact(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 3 {
		f.publish("a", events.FactProgressed)
	}
	late, complete := &recorder{}, &recorder{}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: late}, sink.Entry{Name: "complete", Sink: complete, Backfill: true})
	f.awaitStarted(set)
	f.awaitFinished(set)
	f.publish("a", events.FactCompleted)
	f.eventually("all facts are delivered", func() bool {
		return len(complete.delivered()) == 4 && len(late.delivered()) == 1
	})
	require.Equal(t, ids("a", 4, 4), late.delivered())
	require.Equal(t, ids("a", 1, 4), complete.delivered())
}

func TestUnselectedFactsAreSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	filter, err := sink.NewFilter(sink.FilterConfig{Facts: []string{"completed", "gap"}, Names: []string{"a*"}})
	require.NoError(t, err)
	r := &recorder{}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Filter: filter, Backfill: true})
	f.publish("a", events.FactStarted)
	f.publish("a", events.FactGap) // ignored by the sink
	f.publish("b", events.FactCompleted)
	f.publish("a", events.FactCompleted)
	f.awaitFinished(set)
	require.Equal(t, ids("a", 3, 3), r.delivered())
}

func TestFailureDelaysOnlyItsThreadAndKeepsOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var open atomic.Bool
	r := &recorder{traits: sink.Traits{Parallel: 3}, respond: func(d sink.Delivery) error {
		if d.Thread == "bad" && !open.Load() {
			return errUnavailable
		}
		return nil
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 10 {
		f.publish("bad", events.FactProgressed)
		f.publish("good", events.FactProgressed)
		f.publish("fine", events.FactProgressed)
	}
	f.eventually("the other threads are delivered", func() bool {
		return len(r.of("good")) == 10 && len(r.of("fine")) == 10
	})
	require.Empty(t, r.of("bad"))
	f.eventually("check fails", func() bool { return errors.Is(set.Check(t.Context()), errUnavailable) })
	f.eventually("the error is saved", func() bool {
		list, err := set.List(context.Background())
		return err == nil && list[0].LastError == errUnavailable.Error() && !list[0].LastErrorSince.IsZero()
	})
	open.Store(true)
	f.awaitFinished(set)
	for _, workload := range []string{"bad", "good", "fine"} {
		require.Equal(t, ids(workload, 1, 10), r.of(workload))
	}
	require.Zero(t, r.concurrent)
	f.eventually("check succeeds", func() bool { return set.Check(t.Context()) == nil })
}

func TestFailingThreadIsDeadLetteredWhileOthersSucceed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// The first failure is recorded before the second attempt begins. Good facts succeed after that.
	failed, attempts := make(chan struct{}), 0
	r := &recorder{traits: sink.Traits{Parallel: 2}, respond: func(d sink.Delivery) error {
		if d.Thread == "bad" {
			if attempts++; attempts == 2 {
				close(failed)
			}
			return errUnavailable
		}
		<-failed
		return nil
	}}
	f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true, MaxPending: 8})
	for range 30 {
		f.publish("bad", events.FactProgressed)
		f.publish("good", events.FactProgressed)
	}
	f.eventually("all good facts", func() bool { return len(r.of("good")) == 30 })
	require.Equal(t, ids("good", 1, 30), r.of("good"))
	require.NotEmpty(t, f.deadLetters())
}

func TestFactsWaitOnStreamWhileEveryDeliveryFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var open atomic.Bool
	var attempts atomic.Int64
	r := &recorder{respond: func(sink.Delivery) error {
		attempts.Add(1)
		if !open.Load() {
			return errUnavailable
		}
		return nil
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true, MaxPending: 8})
	for range 40 {
		f.publish("a", events.FactProgressed)
	}
	f.eventually("many attempts", func() bool { return attempts.Load() > 20 })
	list, err := set.List(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, list[0].Pending, 8)
	require.Equal(t, uint64(1), list[0].Next)
	open.Store(true)
	f.awaitFinished(set)
	require.Equal(t, ids("a", 1, 40), r.delivered())
	require.Empty(t, f.deadLetters())
}

func TestPermanentErrorIsDeadLetteredAndCanBeRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var fixed atomic.Bool
	r := &recorder{respond: func(d sink.Delivery) error {
		if d.Key == "a/2" && !fixed.Load() {
			return fmt.Errorf("with a line\nbreak: %w", retry.Permanent(errUnavailable))
		}
		return nil
	}}
	other := &recorder{}
	set, stop := f.replica(sink.Entry{
		Name:     "test",
		Sink:     r,
		Backfill: true,
	}, sink.Entry{Name: "other", Sink: other, Backfill: true})
	for range 3 {
		f.publish("a", events.FactProgressed)
	}
	f.awaitFinished(set)
	require.Equal(t, []string{"a/1", "a/3"}, r.delivered())
	deadLetters := f.deadLetters()
	require.Len(t, deadLetters, 1)
	l := deadLetters[0]
	require.Equal(t, "lockstep.local.dead.deploys.sink.test.deploy.c1.shop.deployment.a.progressed", l.Subject)
	require.Equal(t, "lockstep.local.sink.test.deploy.c1.shop.deployment.a.progressed",
		l.Header.Get("Lockstep-Dead-Subject"))
	require.Equal(t, "with a line break: the destination is unavailable", l.Header.Get("Lockstep-Dead-Reason"))
	require.Equal(t, "sink-test", l.Header.Get("Lockstep-Dead-Consumer"))
	require.Equal(t, "a/2", l.Header.Get("ce-id"))

	// `lockstep dead retry` publishes the original on the subject in the dead letter.
	fixed.Store(true)
	retryFact := func() {
		_, err := f.js.PublishMsg(t.Context(), &nats.Msg{
			Subject: l.Header.Get("Lockstep-Dead-Subject"),
			Data:    l.Data,
			Header:  message(t, "a/2", newFact("a", 2, events.FactProgressed)).Header,
		})
		require.NoError(t, err)
	}
	retryFact()
	f.eventually("the retried fact is delivered", func() bool { return len(r.delivered()) == 3 })
	require.Equal(t, "a/2!", r.delivered()[2])
	f.eventually("the other sink has all facts", func() bool { return len(other.delivered()) == 3 })
	require.Equal(t, ids("a", 1, 3), other.delivered(), "other sinks do not receive the retry")

	// A retry while no replica runs is delivered by the next one. The first retry is acknowledged before.
	f.eventually("the retried fact is acknowledged", func() bool {
		consumer, err := f.js.Consumer(context.Background(), topology.StreamSinks, "sink-test")
		if err != nil {
			return false
		}
		info := consumer.CachedInfo()
		return info.AckFloor.Stream == 1 && info.NumAckPending == 0
	})
	stop()
	retryFact()
	f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	f.eventually("the retried fact is delivered", func() bool { return len(r.delivered()) == 4 })
}

func TestUnreadableFactIsDeadLettered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	subject := cell.Deploy("c1", "shop", "deployment", "a", "started")
	for _, m := range []*nats.Msg{
		{Subject: subject, Data: []byte("{}")},
		{Subject: subject, Data: []byte("{}"), Header: message(t, "x", newFact("a", 1, events.FactStarted)).Header},
		{Subject: subject, Data: []byte("no JSON"), Header: message(t, "y", newFact("a", 1, events.FactStarted)).Header},
	} {
		_, err := f.js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	f.publish("a", events.FactStarted)
	f.awaitFinished(set)
	require.Equal(t, ids("a", 1, 1), r.delivered())
	require.Len(t, f.deadLetters(), 3)
}

func TestPanicOfSinkIsRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var once sync.Once
	r := &recorder{respond: func(sink.Delivery) error {
		once.Do(func() { panic("oh") })
		return nil
	}}
	_, _ = f.replica(sink.Entry{
		Name:     "test",
		Sink:     r,
		Backfill: true,
		Retry:    sink.Retry{Min: time.Millisecond, Max: time.Millisecond},
	})
	f.publish("a", events.FactStarted)
	f.eventually("the second attempt succeeds", func() bool { return len(r.delivered()) == 1 })
}

func TestFactIsDeadLetteredAfterGiveUpTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{respond: func(sink.Delivery) error { return errUnavailable }}
	set, _ := f.replica(sink.Entry{
		Name:     "test",
		Sink:     r,
		Backfill: true,
		Retry:    sink.Retry{Min: time.Millisecond, Max: time.Millisecond, GiveUp: 20 * time.Millisecond},
	})
	f.publish("a", events.FactStarted)
	f.awaitFinished(set)
	deadLetters := f.deadLetters()
	require.Len(t, deadLetters, 1)
	require.Contains(t, deadLetters[0].Header.Get("Lockstep-Dead-Reason"), "given up after")
}

func TestFactIsRetriedAfterRequestedDelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const delay = 300 * time.Millisecond
	var mu sync.Mutex
	var at []time.Time
	r := &recorder{respond: func(sink.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if at = append(at, time.Now()); len(at) == 1 {
			return &sink.RetryAfter{Delay: delay, Err: errUnavailable}
		}
		return nil
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	f.publish("a", events.FactStarted)
	f.awaitFinished(set)
	require.Len(t, at, 2)
	require.GreaterOrEqual(t, at[1].Sub(at[0]), delay)
}

func TestWaitingFactsAreCombinedIntoOneDelivery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release, entered := make(chan struct{}), make(chan struct{}, 100)
	r := &recorder{traits: sink.Traits{Latest: true}, respond: func(sink.Delivery) error {
		entered <- struct{}{}
		<-release
		return nil
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	f.publish("a", events.FactStarted)
	<-entered
	for range 20 {
		f.publish("a", events.FactProgressed)
	}
	f.awaitWaiting(set, 21)
	close(release)
	f.awaitFinished(set)
	require.Equal(t, []string{"a/1", "a/21+++++++++++++++++++"}, r.delivered())
	var combined int
	require.NoError(t, f.pool.QueryRow(t.Context(),
		`SELECT count(*) FROM sink_deliveries WHERE outcome = 'combined'`).Scan(&combined))
	require.Equal(t, 19, combined)
}

func TestOtherFactsAreDeliveredBeforeProgress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release, entered := make(chan struct{}), make(chan struct{}, 100)
	r := &recorder{traits: sink.Traits{Latest: true}, respond: func(sink.Delivery) error {
		entered <- struct{}{}
		<-release
		return nil
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	f.publish("first", events.FactStarted)
	<-entered
	f.publish("a", events.FactProgressed)
	f.publish("b", events.FactProgressed)
	f.publish("c", events.FactCompleted)
	f.awaitWaiting(set, 4)
	close(release)
	f.awaitFinished(set)
	require.Equal(t, []string{"first/1", "c/1", "a/1", "b/1"}, r.delivered())
}

func TestStandbyContinuesAtPositionOfLeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{traits: sink.Traits{Parallel: 3}}
	entry := sink.Entry{Name: "test", Sink: r, Backfill: true}
	_, stopFirst := f.replica(entry)
	second, _ := f.replica(entry)
	for i := range 90 {
		f.publish([]string{"a", "b", "c"}[i%3], events.FactProgressed)
		if i == 45 {
			stopFirst()
		}
	}
	f.awaitFinished(second)
	for _, workload := range []string{"a", "b", "c"} {
		require.Equal(t, ids(workload, 1, 30), r.of(workload), "each fact once, in order")
	}
	require.Zero(t, r.concurrent)
}

// The connection with the lock breaks during a delivery, as in a crash. The fact is delivered again
// with the same key.
func TestReplicaWithLostLockRecordsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var once sync.Once
	r := &recorder{respond: func(d sink.Delivery) error {
		if d.Key == "a/2" {
			once.Do(func() {
				_, err := f.pool.Exec(context.Background(), `
					SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory' AND granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
				if err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 5 {
		f.publish("a", events.FactProgressed)
	}
	f.awaitFinished(set)
	require.Equal(t, []string{"a/1", "a/2", "a/2", "a/3", "a/4", "a/5"}, r.delivered())
}

func TestDeliveryContinuesAfterRestartOfNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 5 {
		f.publish("a", events.FactProgressed)
	}
	f.eventually("the first fact is delivered", func() bool { return len(r.delivered()) > 0 })
	require.NoError(t, f.server.Restart())
	natstest.Reconnected(t, f.js.Conn())
	for range 5 {
		f.publish("a", events.FactProgressed)
	}
	f.awaitFinished(set)
	require.Equal(t, ids("a", 1, 10), r.delivered())
}

func TestBackfillAndResendDeliverAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	filter, err := sink.NewFilter(sink.FilterConfig{Facts: []string{"progressed"}})
	require.NoError(t, err)
	r := &recorder{}
	set, _ := f.replica(sink.Entry{Name: "test", Type: "recorder", Sink: r, Backfill: true, Filter: filter})
	for range 3 {
		f.publish("a", events.FactProgressed)
	}
	f.publish("a", events.FactCompleted)
	f.awaitFinished(set)
	require.NoError(t, set.Backfill(t.Context(), "test", 2))
	f.eventually("the facts are delivered again", func() bool { return len(r.delivered()) == 5 })
	require.Equal(t, []string{"a/1", "a/2", "a/3", "a/2", "a/3"}, r.delivered())
	f.awaitFinished(set)

	standby, err := sink.New(sink.Config{
		Cell: cell, Pool: f.pool, JetStream: f.js, Logger: discard, Entries: []sink.Entry{{Name: "test", Sink: r}},
	})
	require.NoError(t, err)
	require.NoError(t, standby.Resend(t.Context(), "test", 4), "any replica resends, also an unselected fact")
	f.eventually("the facts are delivered again", func() bool { return len(r.delivered()) == 6 })
	require.Equal(t, "a/4!", r.delivered()[5])
	require.Equal(t, errcode.NotFound, fault.CodeOf(set.Resend(t.Context(), "test", 99)))
	require.Equal(t, errcode.NotFound, fault.CodeOf(set.Resend(t.Context(), "none", 1)))
	require.Equal(t, errcode.NotFound, fault.CodeOf(set.Backfill(t.Context(), "none", 1)))
	list, err := set.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sink.Status{{Name: "test", Type: "recorder", Next: 5}}, list)
	stream, err := f.js.Stream(t.Context(), topology.StreamDeploys)
	require.NoError(t, err)
	require.Equal(t, uint64(4), stream.CachedInfo().State.Msgs, "DEPLOYS is unchanged")
}

func TestDeletedConsumerIsRecreatedAtItsPosition(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	set, stop := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 3 {
		f.publish("a", events.FactProgressed)
	}
	f.awaitFinished(set)
	f.eventually("a saved position", func() bool {
		var next int
		err := f.pool.QueryRow(context.Background(), `SELECT next_sequence FROM sinks`).Scan(&next)
		return err == nil && next == 4
	})
	stop()
	require.NoError(t, f.js.DeleteConsumer(t.Context(), topology.StreamDeploys, "sink-test"))
	_, err := f.pool.Exec(t.Context(), `DELETE FROM sink_deliveries`)
	require.NoError(t, err)
	f.publish("a", events.FactCompleted)
	set, _ = f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	f.awaitFinished(set)
	require.Equal(t, ids("a", 1, 4), r.delivered())
}

func TestIdleSinkIsReadyAgainAfterItsConsumerFailed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	set, _ := f.replica(sink.Entry{Name: "test", Sink: &recorder{}})
	f.awaitStarted(set)
	require.NoError(t, f.js.DeleteStream(t.Context(), topology.StreamDeploys))
	f.eventually("the sink is not ready", func() bool {
		err := set.Check(context.Background())
		return err != nil && strings.Contains(err.Error(), topology.StreamDeploys)
	})
	require.NoError(t, topology.Ensure(natstest.Context(t), f.js, cell, topology.Options{StorageBytes: 1 << 30}))
	f.eventually("the sink is ready", func() bool { return set.Check(context.Background()) == nil })
}

func TestThreadsAreDurableAndClaimedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	long := fmt.Sprintf("%05000d", 1)
	var claimed []bool
	r := &recorder{respond: func(d sink.Delivery) error {
		ctx := context.Background()
		_, found, err := d.Threads.Get(ctx, long)
		if err != nil || found != (len(claimed) > 0) {
			return fmt.Errorf("found %t: %w", found, err)
		}
		ok, err := d.Threads.Claim(ctx, long, []byte(`{"n":1}`))
		if err != nil {
			return err
		}
		claimed = append(claimed, ok)
		return d.Threads.Put(ctx, long, fmt.Appendf(nil, `{"n":%d}`, len(claimed)+1))
	}}
	set, _ := f.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	f.publish("a", events.FactProgressed)
	f.publish("a", events.FactProgressed)
	f.awaitFinished(set)
	require.Equal(t, []bool{true, false}, claimed)
	var value string
	require.NoError(t, f.pool.QueryRow(t.Context(), `SELECT value->>'n' FROM sink_threads`).Scan(&value))
	require.Equal(t, "3", value)
}
