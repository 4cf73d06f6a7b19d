package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
)

// worker delivers the facts of one sink while this replica holds the lock. Unfinished facts wait in memory, in one
// queue per thread. A fact is acknowledged when it is finished.
type worker struct {
	set    *Set
	name   string
	sink   Sink
	traits Traits
	filter *Filter
	cfg    Entry
	store  *store
	logger *slog.Logger
	wake   chan struct{}

	deliveries sync.WaitGroup

	mu          sync.Mutex
	queues      map[string]*queue
	pending     map[position]*queued
	received    uint64
	busy        int       // queues with a delivery in progress
	succeededAt time.Time // the last success
	reading     failure   // of the consumers
	delivering  failure   // of the last delivery
}

// failure is an error and since when there has been one. The zero value is none.
type failure struct {
	err   error
	since time.Time
}

// set records the last error, or that there is none.
func (f *failure) set(err error) {
	if f.err == nil {
		f.since = time.Now()
	}
	f.err = err
}

func newWorker(s *Set, e Entry, st *store) *worker {
	traits := e.Sink.Traits()
	traits.Parallel = max(traits.Parallel, 1)
	return &worker{
		set: s, name: e.Name, sink: e.Sink, traits: traits, filter: e.Filter, cfg: e, store: st,
		logger: s.cfg.Logger.With(slog.String(logkey.Sink, e.Name)), wake: make(chan struct{}, 1),
	}
}

// supervise restarts the worker until ctx ends.
func (w *worker) supervise(ctx context.Context) {
	delay := restartPolicy().Backoff()
	for ctx.Err() == nil {
		start := time.Now()
		err := w.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReconnected) {
			continue
		}
		if time.Since(start) > time.Minute {
			delay.Reset()
		}
		w.setReading(err)
		w.logger.WarnContext(ctx, "delivery to the sink failed; restarting", logkey.Error(err))
		if delay.Wait(ctx) != nil {
			return
		}
	}
}

// errReconnected reports that the connection to NATS was lost. The server still answers the pull requests that were
// open, but across accounts their messages are lost.
var errReconnected = errors.New("reconnected to NATS")

// run receives and delivers facts until ctx ends, a consumer fails or the connection was lost. Deliveries in
// progress may then continue for Config.Grace.
func (w *worker) run(ctx context.Context) error {
	w.mu.Lock()
	w.queues, w.pending, w.busy = map[string]*queue{}, map[position]*queued{}, 0
	w.mu.Unlock()
	reconnected := w.set.cfg.JetStream.Conn().StatusChanged(nats.CONNECTED)
	defer w.set.cfg.JetStream.Conn().RemoveStatusListener(reconnected)
	consumers, err := w.openConsumers(ctx)
	if err != nil {
		return err
	}
	w.setReading(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deliveryCtx, endDeliveries := context.WithCancel(context.WithoutCancel(ctx))
	defer endDeliveries()
	var running sync.WaitGroup
	for _, c := range consumers {
		running.Go(func() {
			if err := w.receive(ctx, c); err != nil {
				cancel(err)
			}
		})
	}
	running.Go(func() { w.reportProgress(ctx, consumers[0]) })
	running.Go(func() {
		select {
		case <-reconnected:
			cancel(errReconnected)
		case <-ctx.Done():
		}
	})
	w.dispatch(ctx, deliveryCtx)
	running.Wait()
	stop := time.AfterFunc(w.set.cfg.Grace, endDeliveries)
	defer stop.Stop()
	w.deliveries.Wait()
	w.set.metrics.pending.WithLabelValues(w.name).Set(0)
	return context.Cause(ctx) //nolint:wrapcheck // The error of a part of the worker.
}

// receive queues the messages of a consumer.
func (w *worker) receive(ctx context.Context, c streamConsumer) error {
	messages, err := c.consumer.Messages(
		jetstream.PullMaxMessages(min(w.cfg.MaxPending, 200)), jetstream.PullExpiry(pullExpiry),
	)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.stream, err)
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	defer messages.Stop()
	var last uint64
	for {
		msg, err := messages.Next()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read consumer %s of %s: %w", consumerName(w.name), c.stream, err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("read %s: %w", c.stream, err)
		}
		// The server numbers its deliveries. A missing number means that a message went to an earlier replica. The server
		// would redeliver it late and out of order, so the worker restarts from the first unfinished fact.
		if last > 0 && meta.Sequence.Consumer > last+1 {
			return fmt.Errorf("read %s: %w", c.stream, errSkipped)
		}
		last = meta.Sequence.Consumer
		w.enqueue(ctx, position{stream: c.stream, sequence: meta.Sequence.Stream}, msg)
	}
}

// pullExpiry is the lifetime of a pull request: the longest time for which a lost one takes messages. The
// server confirms it in the middle.
const pullExpiry = 10 * time.Second

// errSkipped reports that the server delivered a message to another client of the consumer.
var errSkipped = errors.New("a fact was delivered to another replica")

func (w *worker) enqueue(ctx context.Context, at position, msg jetstream.Msg) {
	stored := nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()}
	f := &queued{position: at, stored: stored, msg: msg, requested: at.stream == topology.StreamSinks}
	f.event, f.fact, f.decodeErr = Read(msg.Headers(), msg.Data())
	f.key = f.event.ID()
	thread, selected := fmt.Sprintf("unread %s/%d", at.stream, at.sequence), true
	if f.decodeErr == nil {
		thread, selected = w.sink.Thread(f.fact)
		selected = selected && (f.requested || w.filter.Selects(f.fact))
	}
	if !selected {
		w.set.metrics.facts.WithLabelValues(w.name, outcomeNotSelected).Inc()
		w.acknowledge(ctx, f)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if waiting := w.pending[f.position]; waiting != nil {
		waiting.msg = msg // only the redelivered message can be acknowledged
		return
	}
	w.received++
	f.order = w.received
	w.pending[f.position] = f
	q := w.queues[thread]
	if q == nil {
		q = &queue{thread: thread}
		w.queues[thread] = q
	}
	q.facts = append(q.facts, f)
	w.set.metrics.pending.WithLabelValues(w.name).Set(float64(len(w.pending)))
	w.wakeDispatcher()
}

func (w *worker) wakeDispatcher() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// dispatch starts deliveries until ctx ends.
func (w *worker) dispatch(ctx, deliveryCtx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		q, wait := w.nextQueue(time.Now())
		if q != nil {
			w.deliveries.Go(func() { w.deliverNext(ctx, deliveryCtx, q) })
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// nextQueue returns the next queue to deliver from and marks it as busy. If there is none, it returns how long to wait.
func (w *worker) nextQueue(now time.Time) (*queue, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := time.Hour
	if w.busy >= w.traits.Parallel {
		return nil, wait
	}
	var best *queue
	for _, q := range w.queues {
		switch {
		case q.busy:
		case q.retryAt.After(now):
			wait = min(wait, q.retryAt.Sub(now))
		case best == nil || q.before(best):
			best = q
		}
	}
	if best == nil {
		return nil, wait
	}
	best.busy = true
	w.busy++
	return best, 0
}

// reportProgress extends the ack deadlines of pending facts and saves the position of the sink,
// until ctx ends.
func (w *worker) reportProgress(ctx context.Context, deploys streamConsumer) {
	deadlines := time.NewTicker(w.set.cfg.AckWait / 3)
	defer deadlines.Stop()
	saves := time.NewTicker(w.set.cfg.SaveInterval)
	defer saves.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-deadlines.C:
			w.extendDeadlines(ctx)
		case <-saves.C:
			w.savePosition(ctx, deploys)
		}
	}
}

func (w *worker) extendDeadlines(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.pending {
		if err := f.msg.InProgress(); err != nil {
			w.logger.DebugContext(ctx, "failed to extend an ack deadline", slog.Uint64(logkey.Sequence, f.position.sequence),
				logkey.Error(err))
			return
		}
	}
}

func (w *worker) savePosition(ctx context.Context, deploys streamConsumer) {
	info, err := deploys.consumer.Info(ctx)
	if err == nil {
		w.set.metrics.lag.WithLabelValues(w.name).Set(float64(info.NumPending))
		w.mu.Lock()
		last := cmp.Or(w.delivering.err, w.reading.err)
		w.mu.Unlock()
		lastError := ""
		if last != nil {
			lastError = last.Error()
		}
		err = w.store.savePosition(ctx, w.name, info.AckFloor.Stream+1, lastError)
	}
	if err != nil && ctx.Err() == nil {
		w.logger.WarnContext(ctx, "failed to save the position of the sink", logkey.Error(err))
	}
}

func (w *worker) setReading(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading.set(err)
}

// check returns an error if reading or delivering has failed for longer than staleAfter.
func (w *worker) check(staleAfter time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range []failure{w.delivering, w.reading} {
		if f.err != nil && time.Since(f.since) >= staleAfter {
			return fmt.Errorf("sink %s has failed for %s, %d facts wait: %w",
				w.name, time.Since(f.since).Round(time.Second), len(w.pending), f.err)
		}
	}
	return nil
}
