package session

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
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/nats"
	"lockstep.internal/services/watcher/report"
)

// batchSpan is the trace span of all messages published without a pause in between. One span for all makes tracing
// cheap.
type batchSpan struct {
	span   trace.Span
	parent string // traceparent of the span
	count  int
}

// publish publishes what the queue returns until ctx is done. [Session.drain] waits for what is in
// flight.
func (p *pipeline) publish(ctx context.Context) {
	var b batchSpan
	defer func() { b.end() }()
	for ctx.Err() == nil {
		if !p.Publisher.IsConnected() {
			b.end()
			if p.Publisher.WaitForConnection(ctx) != nil {
				return
			}
			p.mu.Lock()
			p.queue.RetryNow(p.Clock.Now())
			p.mu.Unlock()
		}
		if !p.enterWindow(ctx) {
			return
		}
		p.mu.Lock()
		d, due, ok := p.queue.Next(p.Clock.Now())
		p.mu.Unlock()
		if ok {
			b.begin(ctx, p.Tracer)
			p.deliver(ctx, d, &b)
			continue
		}
		<-p.window
		members, again := p.members()
		if len(members) > 0 {
			b.begin(ctx, p.Tracer)
			p.deliverMembers(ctx, members, &b)
			continue
		}
		b.end()
		p.await(ctx, p.wake, earliest(due, again))
	}
}

// enterWindow waits until one more message may be in flight. It returns false if ctx is done.
func (s *Session) enterWindow(ctx context.Context) bool {
	select {
	case s.window <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// members takes the members of the next message from the queue. If the pace allows none, it returns when to ask again.
func (p *pipeline) members() ([]delivery.Delivery, time.Time) {
	allowed, again := p.pace.Allows(p.Clock.Now(), p.maxUnread)
	if !allowed {
		return nil, again
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Members(p.pageMembers), time.Time{}
}

// await waits for a signal or until due, zero for never.
func (p *pipeline) await(ctx context.Context, wake <-chan struct{}, due time.Time) {
	var elapsed <-chan time.Time
	if !due.IsZero() {
		timer := p.Clock.NewTimer(due.Sub(p.Clock.Now()))
		defer timer.Stop()
		elapsed = timer.C()
	}
	select {
	case <-wake:
	case <-elapsed:
	case <-ctx.Done():
	}
}

// drain waits until nothing is in flight. Nothing may be published meanwhile.
func (s *Session) drain() {
	for range cap(s.window) {
		select {
		case s.window <- struct{}{}:
		case <-s.Drain.Done():
			return
		}
	}
}

// deliver publishes one version. The message is in the window.
func (p *pipeline) deliver(ctx context.Context, d delivery.Delivery, b *batchSpan) {
	msg, err := p.encode(ctx, d, b)
	if err != nil {
		<-p.window
		p.omit(ctx, d, err)
		return
	}
	p.send(ctx, msg, []delivery.Delivery{d}, b)
}

// omit records a version that cannot be encoded. A retry would fail, too, so it counts as acknowledged. Later versions
// are published.
func (p *pipeline) omit(ctx context.Context, d delivery.Delivery, err error) {
	p.Metrics.malformed.Inc()
	p.Logger.ErrorContext(ctx, "omitted an object that cannot be encoded",
		append(keyAttrs(d.Key()), logkey.Error(err))...)
	p.settle(ctx, []delivery.Delivery{d}, nil)
}

// send publishes a message with the deliveries, one or several members of a full resync. It is in the window.
func (p *pipeline) send(ctx context.Context, msg *natsgo.Msg, deliveries []delivery.Delivery, b *batchSpan) {
	b.count++
	for i := range deliveries {
		d := &deliveries[i]
		p.Metrics.published.WithLabelValues(string(d.Kind), string(d.UpdateType())).Inc()
		if d.Attempt > 1 {
			p.Metrics.retried.Inc()
		} else {
			p.Metrics.skipped.Add(float64(d.Skipped))
		}
	}
	isMember := deliveries[0].ResyncID != ""
	if isMember {
		msg.Header.Set(topology.HeaderReportRead, "1")
		p.pace.Published()
	}
	p.Publisher.Publish(msg, func(sequence uint64, err error) {
		if isMember {
			p.pace.Settled(sequence)
		}
		if err == nil {
			p.Metrics.acked.Add(float64(len(deliveries)))
		}
		<-p.window
		p.settle(ctx, deliveries, err)
	})
}

// earliest returns the earlier of two times; zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// settle records the result of the deliveries of one message.
func (p *pipeline) settle(ctx context.Context, deliveries []delivery.Delivery, err error) {
	now := p.Clock.Now()
	p.mu.Lock()
	for _, d := range deliveries {
		switch {
		case err == nil:
			p.queue.Acked(d, now)
		case errors.Is(err, nats.ErrTooLarge) && !d.TooLarge && len(deliveries) == 1:
			p.queue.TooLarge(d, now)
		default:
			p.queue.Failed(d, now.Add(publishRetries().Delay(d.Attempt)))
		}
	}
	p.mu.Unlock()
	if err != nil {
		p.Logger.DebugContext(ctx, "publish observation failed", append(keyAttrs(deliveries[0].Key()),
			slog.Int(logkey.Attempt, deliveries[0].Attempt), slog.Int(logkey.Count, len(deliveries)),
			logkey.Error(err))...)
	}
	signal(p.wake)
	signal(p.settled)
}

// encode makes the message of an observation, or of its rejection if it is too large.
func (p *pipeline) encode(ctx context.Context, d delivery.Delivery, b *batchSpan) (*natsgo.Msg, error) {
	message, err := p.reporter.Observed(d)
	if err != nil {
		return nil, err
	}
	msg, err := encode(message, b.parent)
	if err != nil {
		return nil, err
	}
	limit := min(p.MaxMessage, p.Publisher.Limit())
	size := nats.Size(msg)
	if size <= limit && !d.TooLarge {
		return msg, nil
	}
	p.Metrics.rejected.Inc()
	p.Logger.WarnContext(ctx, "rejected an object that is too large to publish",
		append(keyAttrs(d.Key()), slog.Int(logkey.SizeBytes, size), slog.Int(logkey.LimitBytes, limit))...)
	if message, err = p.reporter.Rejected(d, size, limit); err != nil {
		return nil, err
	}
	return encode(message, b.parent)
}

func (b *batchSpan) begin(ctx context.Context, tracer trace.Tracer) {
	if b.span != nil {
		return
	}
	producer := trace.WithSpanKind(trace.SpanKindProducer)
	ctx, span := tracer.Start(ctx, "publish observations", producer) //nolint:spancheck // end ends it
	b.span, b.count, b.parent = span, 0, traceParent(ctx)
} //nolint:spancheck // end ends it

func (b *batchSpan) end() {
	if b.span == nil {
		return
	}
	b.span.SetAttributes(attribute.Int("messaging.batch.message_count", b.count))
	b.span.End()
	b.span = nil
}

// encode makes the NATS message of an event. Parent is its traceparent, empty for none.
func encode(message report.Message, parent string) (*natsgo.Msg, error) {
	if parent != "" {
		message.Event.SetExtension(event.TraceParent, parent)
	}
	msg, err := event.Encode(message.Event, message.Subject)
	if err != nil {
		return nil, fmt.Errorf("encode the message for %s: %w", message.Subject, err)
	}
	return msg, nil
}

// traceParent returns the traceparent of a recorded trace, else an empty string.
func traceParent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	header := natsgo.Header{}
	telemetry.Inject(ctx, header)
	return header.Get(event.TraceParent)
}

// publishOnce publishes an event and waits for its acknowledgement.
func (s *Session) publishOnce(ctx context.Context, message report.Message) error {
	msg, err := encode(message, traceParent(ctx))
	if err != nil {
		return err
	}
	return s.Publisher.PublishSync(ctx, msg)
}

// publishUntilStored publishes an event until it is acknowledged. It may be stored more than once.
func (s *Session) publishUntilStored(ctx context.Context, message report.Message) error {
	for n := 1; ; n++ {
		if err := s.Publisher.WaitForConnection(ctx); err != nil {
			return err
		}
		err := s.publishOnce(ctx, message)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		s.Logger.DebugContext(ctx, "publish failed; retrying",
			slog.String(logkey.EventID, message.Event.ID()), logkey.Error(err))
		s.sleep(ctx, n)
	}
}
