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

// send sends what the ledger owes until ctx is done, and waits for the receipts of what is in flight then.
func (t *term) send(ctx context.Context) {
	var b batch
	defer func() { b.end() }()
	defer t.drain()
	for ctx.Err() == nil {
		if !t.publisher.IsConnected() {
			b.end()
			if t.publisher.Connected(ctx) != nil {
				return
			}
			t.mu.Lock()
			t.ledger.Hurry(t.clock.Now())
			t.mu.Unlock()
		}
		select {
		case t.window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		d, due, ok := t.ledger.Next(t.clock.Now())
		t.mu.Unlock()
		if !ok {
			<-t.window
			b.end()
			t.await(ctx, due)
			continue
		}
		b.begin(ctx, t.tracer)
		t.deliver(ctx, d, &b)
	}
}

// await waits until there may be something to send.
func (t *term) await(ctx context.Context, due time.Time) {
	var timer <-chan time.Time
	if !due.IsZero() {
		clock := t.clock.NewTimer(due.Sub(t.clock.Now()))
		defer clock.Stop()
		timer = clock.C()
	}
	select {
	case <-t.wake:
	case <-timer:
	case <-ctx.Done():
	}
}

// drain waits until nothing is in flight.
func (t *term) drain() {
	for range cap(t.window) {
		select {
		case t.window <- struct{}{}:
		case <-t.finish.Done():
			return
		}
	}
}

func (t *term) deliver(ctx context.Context, d Delivery, b *batch) {
	msg, err := t.encode(ctx, d, b)
	if err != nil {
		// No retry mends it; the object is told of again when it changes.
		t.metrics.malformed.Inc()
		t.logger.ErrorContext(ctx, "an object cannot be told as an event and is left out", slog.Any("object", d.Key), slog.String("error", err.Error()))
		t.settle(ctx, d, nil)
		return
	}
	b.count++
	t.metrics.published.WithLabelValues(string(d.Kind), string(d.UpdateType())).Inc()
	if d.Attempt > 1 {
		t.metrics.retried.Inc()
	}
	t.publisher.Publish(msg, func(err error) {
		if err == nil {
			t.metrics.acked.Inc()
		}
		t.settle(ctx, d, err)
	})
}

// settle tells the ledger what became of a delivery.
func (t *term) settle(ctx context.Context, d Delivery, err error) {
	<-t.window
	now := t.clock.Now()
	t.mu.Lock()
	switch {
	case err == nil:
		t.ledger.Acked(d, now)
	case errors.Is(err, nats.ErrTooLarge) && !d.Refused:
		t.ledger.Refused(d, now)
	default:
		t.ledger.Failed(d, now.Add(backOff(d.Attempt)))
	}
	t.mu.Unlock()
	if err != nil {
		t.logger.DebugContext(ctx, "an observation is not acknowledged", slog.Any("object", d.Key), slog.Int("attempt", d.Attempt), slog.String("error", err.Error()))
	}
	signal(t.wake)
	signal(t.settled)
}

// encode makes the message: the observation, or that it is too large to be told.
func (t *term) encode(ctx context.Context, d Delivery, b *batch) (*natsgo.Msg, error) {
	fact, err := t.reporter.Observed(d)
	if err != nil {
		return nil, err
	}
	msg, err := b.encode(fact)
	if err != nil {
		return nil, err
	}
	limit := min(int(t.publish.MaxMessage), t.publisher.Limit())
	size := nats.Size(msg)
	if size <= limit && !d.Refused {
		return msg, nil
	}
	t.metrics.rejected.Inc()
	t.logger.WarnContext(ctx, "an object is too large to be told", slog.Any("object", d.Key), slog.Int("size_bytes", size), slog.Int("limit_bytes", limit))
	if fact, err = t.reporter.Rejected(d, size, limit); err != nil {
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
	return t.publisher.PublishSync(ctx, msg) //nolint:wrapcheck // says to where
}

// publishUntilStored sends a fact until it is acknowledged. It may be stored more than once.
func (t *term) publishUntilStored(ctx context.Context, fact Fact) error {
	for n := 1; ; n++ {
		if err := t.publisher.Connected(ctx); err != nil {
			return err //nolint:wrapcheck // the context's
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
