package sink

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
)

const (
	deadLetterTimeout = 10 * time.Second
	service           = "deploys"
)

// newDeadLetter returns the copy of a fact for DEAD. Its original subject is on SINKS, so that a retry is delivered
// only to this sink.
func newDeadLetter(cell topology.Cell, sink string, f *queued, reason error) *nats.Msg {
	subject := f.stored.Subject
	if !f.requested {
		subject = cell.Sink(sink, subject)
	}
	return deadletter.New(cell, deadletter.Origin{
		Service: service, Consumer: consumerName(sink),
		Stream: f.position.stream, Subject: subject, Sequence: f.position.sequence,
	}, f.stored.Header, f.stored.Data, reason)
}

// deadLetter publishes the fact on DEAD.
func (w *worker) deadLetter(ctx context.Context, f *queued, reason error) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	id := fmt.Sprintf("%s/%s/%d", consumerName(w.name), f.position.stream, f.position.sequence)
	msg := newDeadLetter(w.set.cfg.Cell, w.name, f, reason)
	if err := deadletter.Publish(ctx, w.set.cfg.JetStream, msg, id); err != nil {
		return fmt.Errorf("dead-letter fact %d of %s: %w", f.position.sequence, f.position.stream, err)
	}
	w.logger.WarnContext(ctx, "dead-lettered a fact", slog.String(logkey.Stream, f.position.stream),
		slog.Uint64(logkey.Sequence, f.position.sequence),
		slog.String(logkey.Subject, f.stored.Subject), slog.Any(logkey.Reason, reason))
	return nil
}
