package sink_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/tools/testkit/natstest"
)

var errAway = errors.New("the destination is away")

func TestANewSinkBeginsWithTheNextFactOrWithTheOldest(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for range 3 {
		b.publish("a", events.FactProgressed)
	}
	late, whole := &recorder{}, &recorder{}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: late}, sink.Entry{Name: "whole", Sink: whole, Backfill: true})
	b.begun(set)
	b.drained(set)
	b.publish("a", events.FactCompleted)
	b.eventually("all", func() bool { return len(whole.delivered()) == 4 && len(late.delivered()) == 1 })
	require.Equal(t, ids("a", 4, 4), late.delivered())
	require.Equal(t, ids("a", 1, 4), whole.delivered())
}

func TestWhatIsNotSelectedIsPassed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	filter, err := sink.NewFilter(sink.FilterConfig{Facts: []string{"completed", "gap"}, Names: []string{"a*"}})
	require.NoError(t, err)
	r := &recorder{}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Filter: filter, Backfill: true})
	b.publish("a", events.FactStarted)
	b.publish("a", events.FactGap) // the sink has nothing to tell of it
	b.publish("b", events.FactCompleted)
	b.publish("a", events.FactCompleted)
	b.drained(set)
	require.Equal(t, ids("a", 3, 3), r.delivered())
}

func TestAFailureDelaysItsOwnThreadOnlyAndKeepsItsOrder(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var open atomic.Bool
	r := &recorder{traits: sink.Traits{Parallel: 3}, answer: func(d sink.Delivery) error {
		if d.Thread == "bad" && !open.Load() {
			return errAway
		}
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 10 {
		b.publish("bad", events.FactProgressed)
		b.publish("good", events.FactProgressed)
		b.publish("fine", events.FactProgressed)
	}
	b.eventually("the others", func() bool { return len(r.of("good")) == 10 && len(r.of("fine")) == 10 })
	require.Empty(t, r.of("bad"))
	b.eventually("a complaint", func() bool { return set.Check(t.Context()) != nil })
	require.ErrorIs(t, set.Check(t.Context()), errAway)
	b.eventually("a complaint for all replicas", func() bool {
		list, err := set.List(context.Background())
		return err == nil && list[0].Trouble == errAway.Error() && !list[0].TroubleSince.IsZero()
	})
	open.Store(true)
	b.drained(set)
	for _, workload := range []string{"bad", "good", "fine"} {
		require.Equal(t, ids(workload, 1, 10), r.of(workload))
	}
	require.Zero(t, r.twos)
	require.NoError(t, set.Check(t.Context()))
}

func TestOneThreadThatNeverGetsThroughEndsOnDeadWhileOthersDo(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := &recorder{traits: sink.Traits{Parallel: 2}, answer: func(d sink.Delivery) error {
		if d.Thread == "bad" {
			return errAway
		}
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true, Waiting: 8})
	for range 30 {
		b.publish("bad", events.FactProgressed)
		b.publish("good", events.FactProgressed)
	}
	b.eventually("what is good gets through", func() bool { return len(r.of("good")) == 30 })
	require.Equal(t, ids("good", 1, 30), r.of("good"))
	require.NotEmpty(t, b.dead())
	_ = set
}

func TestWhileNothingGetsThroughEverythingWaitsOnTheStream(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var open atomic.Bool
	var attempts atomic.Int64
	r := &recorder{answer: func(sink.Delivery) error {
		attempts.Add(1)
		if !open.Load() {
			return errAway
		}
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true, Waiting: 8})
	for range 40 {
		b.publish("a", events.FactProgressed)
	}
	b.eventually("many attempts", func() bool { return attempts.Load() > 20 })
	list, err := set.List(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, list[0].Waiting, 8)
	require.Equal(t, uint64(1), list[0].Next)
	open.Store(true)
	b.drained(set)
	require.Equal(t, ids("a", 1, 40), r.delivered())
	require.Empty(t, b.dead())
}

func TestWhatIsRefusedForGoodIsOnDeadAndMayBeRetried(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var mended atomic.Bool
	r := &recorder{answer: func(d sink.Delivery) error {
		if d.Key == "a/2" && !mended.Load() {
			return fmt.Errorf("with a line\nbreak: %w", sink.Permanent(errAway))
		}
		return nil
	}}
	other := &recorder{}
	set, stop := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true}, sink.Entry{Name: "other", Sink: other, Backfill: true})
	for range 3 {
		b.publish("a", events.FactProgressed)
	}
	b.drained(set)
	require.Equal(t, []string{"a/1", "a/3"}, r.delivered())
	letters := b.dead()
	require.Len(t, letters, 1)
	l := letters[0]
	require.Equal(t, "lockstep.local.dead.deploys.sink.test.deploy.c1.shop.deployment.a.progressed", l.Subject)
	require.Equal(t, "lockstep.local.sink.test.deploy.c1.shop.deployment.a.progressed", l.Header.Get("Lockstep-Dead-Subject"))
	require.Equal(t, "with a line break: the destination is away", l.Header.Get("Lockstep-Dead-Reason"))
	require.Equal(t, "sink-test", l.Header.Get("Lockstep-Dead-Consumer"))
	require.Equal(t, "a/2", l.Header.Get("ce-id"))

	// As `lockstep dead retry` does: the original to the subject that the letter names.
	mended.Store(true)
	again := func() {
		_, err := b.js.PublishMsg(t.Context(), &nats.Msg{
			Subject: l.Header.Get("Lockstep-Dead-Subject"), Data: l.Data, Header: message(t, "a/2", fact("a", 2, events.FactProgressed)).Header,
		})
		require.NoError(t, err)
	}
	again()
	b.eventually("the retried one", func() bool { return len(r.delivered()) == 3 })
	require.Equal(t, "a/2!", r.delivered()[2])
	b.eventually("the others", func() bool { return len(other.delivered()) == 3 })
	require.Equal(t, ids("a", 1, 3), other.delivered(), "it concerns no other sink")

	// Once more while nobody is there, to be found by the next.
	stop()
	again()
	b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	b.eventually("the retried one", func() bool { return len(r.delivered()) == 4 })
}

func TestWhatCannotBeReadIsOnDead(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := &recorder{}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	subject := cell.Deploy("c1", "shop", "deployment", "a", "started")
	for _, m := range []*nats.Msg{
		{Subject: subject, Data: []byte("{}")},
		{Subject: subject, Data: []byte("{}"), Header: message(t, "x", fact("a", 1, events.FactStarted)).Header},
		{Subject: subject, Data: []byte("no JSON"), Header: message(t, "y", fact("a", 1, events.FactStarted)).Header},
	} {
		_, err := b.js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	b.publish("a", events.FactStarted)
	b.drained(set)
	require.Equal(t, ids("a", 1, 1), r.delivered())
	require.Len(t, b.dead(), 3)
}

func TestAPanicOfASinkIsAFailureAmongOthers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var once sync.Once
	r := &recorder{answer: func(sink.Delivery) error {
		once.Do(func() { panic("oh") })
		return nil
	}}
	_, _ = b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true, Retry: sink.Retry{Min: time.Millisecond, Max: time.Millisecond}})
	b.publish("a", events.FactStarted)
	b.eventually("the second attempt", func() bool { return len(r.delivered()) == 1 })
}

func TestAFactIsGivenUpAfterItsTime(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := &recorder{answer: func(sink.Delivery) error { return errAway }}
	set, _ := b.replica(sink.Entry{
		Name: "test", Sink: r, Backfill: true, Retry: sink.Retry{Min: time.Millisecond, Max: time.Millisecond, GiveUp: 20 * time.Millisecond},
	})
	b.publish("a", events.FactStarted)
	b.drained(set)
	letters := b.dead()
	require.Len(t, letters, 1)
	require.Contains(t, letters[0].Header.Get("Lockstep-Dead-Reason"), "given up after")
}

func TestADestinationThatSaysWhenToComeBackIsObeyed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	const wanted = 300 * time.Millisecond
	var mu sync.Mutex
	var at []time.Time
	r := &recorder{answer: func(sink.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if at = append(at, time.Now()); len(at) == 1 {
			return &sink.RetryAfter{Delay: wanted, Err: errAway}
		}
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	b.publish("a", events.FactStarted)
	b.drained(set)
	require.Len(t, at, 2)
	require.GreaterOrEqual(t, at[1].Sub(at[0]), wanted)
}

func TestWhereOnlyTheLatestMattersWhatWaitedIsOneDelivery(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	gate, entered := make(chan struct{}), make(chan struct{}, 100)
	r := &recorder{traits: sink.Traits{Latest: true}, answer: func(sink.Delivery) error {
		entered <- struct{}{}
		<-gate
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	b.publish("a", events.FactStarted)
	<-entered
	for range 20 {
		b.publish("a", events.FactProgressed)
	}
	b.eventually("all wait", func() bool {
		list, err := set.List(context.Background())
		return err == nil && list[0].Waiting == 21
	})
	close(gate)
	b.drained(set)
	require.Equal(t, []string{"a/1", "a/21+++++++++++++++++++"}, r.delivered())
	var combined int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM sink_deliveries WHERE outcome = 'combined'`).Scan(&combined))
	require.Equal(t, 19, combined)
}

func TestWhatPeopleWaitForGoesBeforeProgress(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	gate, entered := make(chan struct{}), make(chan struct{}, 100)
	r := &recorder{traits: sink.Traits{Latest: true}, answer: func(sink.Delivery) error {
		entered <- struct{}{}
		<-gate
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	b.publish("first", events.FactStarted)
	<-entered
	b.publish("a", events.FactProgressed)
	b.publish("b", events.FactProgressed)
	b.publish("c", events.FactCompleted)
	b.eventually("all wait", func() bool {
		list, err := set.List(context.Background())
		return err == nil && list[0].Waiting == 4
	})
	close(gate)
	b.drained(set)
	require.Equal(t, []string{"first/1", "c/1", "a/1", "b/1"}, r.delivered())
}

func TestAnotherReplicaGoesOnWhereOneStopped(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := &recorder{traits: sink.Traits{Parallel: 3}}
	entry := sink.Entry{Name: "test", Sink: r, Backfill: true}
	_, stopFirst := b.replica(entry)
	second, _ := b.replica(entry)
	for i := range 90 {
		b.publish([]string{"a", "b", "c"}[i%3], events.FactProgressed)
		if i == 45 {
			stopFirst()
		}
	}
	b.drained(second)
	for _, workload := range []string{"a", "b", "c"} {
		require.Equal(t, ids(workload, 1, 30), r.of(workload), "once, in order")
	}
	require.Zero(t, r.twos)
}

// A crash between a delivery and the note of it: the lock's session ends, as when the machine is gone, while a delivery is under way.
func TestAReplicaThatLosesItsLockRecordsNothingAndTheFactIsDeliveredAgainUnderItsKey(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var once sync.Once
	r := &recorder{answer: func(d sink.Delivery) error {
		if d.Key == "a/2" {
			once.Do(func() {
				_, err := b.pool.Exec(context.Background(), `
					SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory' AND granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
				if err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 5 {
		b.publish("a", events.FactProgressed)
	}
	b.drained(set)
	require.Equal(t, []string{"a/1", "a/2", "a/2", "a/3", "a/4", "a/5"}, r.delivered())
}

func TestNATSGoesAndComesBack(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := &recorder{}
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 5 {
		b.publish("a", events.FactProgressed)
	}
	b.eventually("some", func() bool { return len(r.delivered()) > 0 })
	require.NoError(t, b.server.Restart())
	natstest.Reconnected(t, b.js.Conn())
	for range 5 {
		b.publish("a", events.FactProgressed)
	}
	b.drained(set)
	require.Equal(t, ids("a", 1, 10), r.delivered())
}

func TestBackfillAndResend(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	filter, err := sink.NewFilter(sink.FilterConfig{Facts: []string{"progressed"}})
	require.NoError(t, err)
	r := &recorder{}
	set, _ := b.replica(sink.Entry{Name: "test", Type: "recorder", Sink: r, Backfill: true, Filter: filter})
	for range 3 {
		b.publish("a", events.FactProgressed)
	}
	b.publish("a", events.FactCompleted)
	b.drained(set)
	require.NoError(t, set.Backfill(t.Context(), "test", 2))
	b.eventually("again", func() bool { return len(r.delivered()) == 5 })
	require.Equal(t, []string{"a/1", "a/2", "a/3", "a/2", "a/3"}, r.delivered())
	b.drained(set)

	standby, err := sink.New(sink.Config{
		Cell: cell, Pool: b.pool, JetStream: b.js, Logger: discard, Entries: []sink.Entry{{Name: "test", Sink: r}},
	})
	require.NoError(t, err)
	require.NoError(t, standby.Resend(t.Context(), "test", 4), "by any replica, and whatever the filter says")
	b.eventually("again", func() bool { return len(r.delivered()) == 6 })
	require.Equal(t, "a/4!", r.delivered()[5])
	require.Equal(t, errcode.NotFound, fault.CodeOf(set.Resend(t.Context(), "test", 99)))
	require.Equal(t, errcode.NotFound, fault.CodeOf(set.Resend(t.Context(), "nobody", 1)))
	require.Equal(t, errcode.NotFound, fault.CodeOf(set.Backfill(t.Context(), "nobody", 1)))
	list, err := set.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sink.Status{{Name: "test", Type: "recorder", Next: 5}}, list)
	stream, err := b.js.Stream(t.Context(), topology.StreamDeploys)
	require.NoError(t, err)
	require.Equal(t, uint64(4), stream.CachedInfo().State.Msgs, "the public record is as it was")
}

func TestAConsumerThatIsGoneIsMadeAgainWhereItWas(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := &recorder{}
	set, stop := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	for range 3 {
		b.publish("a", events.FactProgressed)
	}
	b.drained(set)
	b.eventually("a note", func() bool {
		var next int
		err := b.pool.QueryRow(context.Background(), `SELECT next_sequence FROM sinks`).Scan(&next)
		return err == nil && next == 4
	})
	stop()
	require.NoError(t, b.js.DeleteConsumer(t.Context(), topology.StreamDeploys, "sink-test"))
	_, err := b.pool.Exec(t.Context(), `DELETE FROM sink_deliveries`)
	require.NoError(t, err)
	b.publish("a", events.FactCompleted)
	set, _ = b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	b.drained(set)
	require.Equal(t, ids("a", 1, 4), r.delivered())
}

func TestThreadsAreDurableAndClaimedOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	long := string(make([]byte, 0)) + fmt.Sprintf("%05000d", 1)
	var claimed []bool
	r := &recorder{answer: func(d sink.Delivery) error {
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
	set, _ := b.replica(sink.Entry{Name: "test", Sink: r, Backfill: true})
	b.publish("a", events.FactProgressed)
	b.publish("a", events.FactProgressed)
	b.drained(set)
	require.Equal(t, []bool{true, false}, claimed)
	var value string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT value->>'n' FROM sink_threads`).Scan(&value))
	require.Equal(t, "3", value)
}
