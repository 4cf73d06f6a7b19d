package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/watcher/nats"
)

// batch is what is sent without a pause: one span, so that tracing costs little however much is sent.
type batch struct {
	span   trace.Span
	parent string // traceparent of the span
	count  int
}

// send sends what the ledger owes until ctx is done. What is in flight then is for [term.drain].
func (sc *scope) send(ctx context.Context) {
	var b batch
	defer func() { b.end() }()
	for ctx.Err() == nil {
		if !sc.publisher.IsConnected() {
			b.end()
			if sc.publisher.Connected(ctx) != nil {
				return
			}
			sc.mu.Lock()
			sc.ledger.Hurry(sc.clock.Now())
			sc.mu.Unlock()
		}
		select {
		case sc.window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		sc.mu.Lock()
		d, due, ok := sc.ledger.Next(sc.clock.Now())
		sc.mu.Unlock()
		if !ok {
			<-sc.window
			b.end()
			sc.await(ctx, due)
			continue
		}
		b.begin(ctx, sc.tracer)
		sc.deliver(ctx, d, &b)
	}
}

// await waits until there may be something to send.
func (sc *scope) await(ctx context.Context, due time.Time) {
	var timer <-chan time.Time
	if !due.IsZero() {
		clock := sc.clock.NewTimer(due.Sub(sc.clock.Now()))
		defer clock.Stop()
		timer = clock.C()
	}
	select {
	case <-sc.wake:
	case <-timer:
	case <-ctx.Done():
	}
}

// drain waits until nothing is in flight. Nobody may send any more.
func (t *term) drain() {
	for range cap(t.window) {
		select {
		case t.window <- struct{}{}:
		case <-t.finish.Done():
			return
		}
	}
}

func (sc *scope) deliver(ctx context.Context, d Delivery, b *batch) {
	msg, err := sc.encode(ctx, d, b)
	if err != nil {
		// No retry mends it; the object is told of again when it changes.
		sc.metrics.malformed.Inc()
		sc.logger.ErrorContext(ctx, "an object cannot be told as an event and is left out", slog.Any("object", d.Key), slog.String("error", err.Error()))
		sc.settle(ctx, d, nil)
		return
	}
	b.count++
	sc.metrics.published.WithLabelValues(string(d.Kind), string(d.UpdateType())).Inc()
	if d.Attempt > 1 {
		sc.metrics.retried.Inc()
	} else {
		sc.metrics.skipped.Add(float64(d.Skipped))
	}
	sc.publisher.Publish(msg, func(err error) {
		if err == nil {
			sc.metrics.acked.Inc()
		}
		sc.settle(ctx, d, err)
	})
}

// settle tells the ledger what became of a delivery.
func (sc *scope) settle(ctx context.Context, d Delivery, err error) {
	<-sc.window
	now := sc.clock.Now()
	sc.mu.Lock()
	switch {
	case err == nil:
		sc.ledger.Acked(d, now)
	case errors.Is(err, nats.ErrTooLarge) && !d.Refused:
		sc.ledger.Refused(d, now)
	default:
		sc.ledger.Failed(d, now.Add(backOff(d.Attempt)))
	}
	sc.mu.Unlock()
	if err != nil {
		sc.logger.DebugContext(ctx, "an observation is not acknowledged", slog.Any("object", d.Key), slog.Int("attempt", d.Attempt), slog.String("error", err.Error()))
	}
	signal(sc.wake)
	signal(sc.settled)
}

// encode makes the message: the observation, or that it is too large to be told.
func (sc *scope) encode(ctx context.Context, d Delivery, b *batch) (*natsgo.Msg, error) {
	fact, err := sc.reporter.Observed(d)
	if err != nil {
		return nil, err
	}
	msg, err := b.encode(fact)
	if err != nil {
		return nil, err
	}
	limit := min(int(sc.publish.MaxMessage), sc.publisher.Limit())
	size := nats.Size(msg)
	if size <= limit && !d.Refused {
		return msg, nil
	}
	sc.metrics.rejected.Inc()
	sc.logger.WarnContext(ctx, "an object is too large to be told", slog.Any("object", d.Key), slog.Int("size_bytes", size), slog.Int("limit_bytes", limit))
	if fact, err = sc.reporter.Rejected(d, size, limit); err != nil {
		return nil, err
	}
	return b.encode(fact)
}

func (b *batch) begin(ctx context.Context, tracer trace.Tracer) {
	if b.span != nil {
		return
	}
	ctx, span := tracer.Start(ctx, "publish observations", trace.WithSpanKind(trace.SpanKindProducer)) //nolint:spancheck // end ends it
	b.span, b.count, b.parent = span, 0, traceParent(ctx)
} //nolint:spancheck // end ends it

func (b *batch) end() {
	if b.span == nil {
		return
	}
	b.span.SetAttributes(attribute.Int("messaging.batch.message_count", b.count))
	b.span.End()
	b.span = nil
}

func (b *batch) encode(fact Fact) (*natsgo.Msg, error) { return encode(fact, b.parent) }

// encode makes the message of a fact; the trace it belongs to, if any, travels with it.
func encode(fact Fact, parent string) (*natsgo.Msg, error) {
	if parent != "" {
		fact.Event.SetExtension(event.TraceParent, parent)
	}
	msg, err := event.Encode(fact.Event, fact.Subject)
	if err != nil {
		return nil, fmt.Errorf("message for %s: %w", fact.Subject, err)
	}
	return msg, nil
}

// traceParent is empty unless the trace is recorded.
func traceParent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	header := natsgo.Header{}
	telemetry.Inject(ctx, header)
	return header.Get(event.TraceParent)
}

// publishOnce sends a fact and waits for its receipt, if there is a connection.
func (t *term) publishOnce(ctx context.Context, fact Fact) error {
	msg, err := encode(fact, traceParent(ctx))
	if err != nil {
		return err
	}
	return t.publisher.PublishSync(ctx, msg)
}

// publishUntilStored sends a fact until it is acknowledged. It may be stored more than once.
func (t *term) publishUntilStored(ctx context.Context, fact Fact) error {
	for n := 1; ; n++ {
		if err := t.publisher.Connected(ctx); err != nil {
			return err
		}
		err := t.publishOnce(ctx, fact)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		t.logger.DebugContext(ctx, "a fact is not acknowledged", slog.String("event_id", fact.Event.ID()), slog.String("error", err.Error()))
		t.pause(ctx, n)
	}
}
