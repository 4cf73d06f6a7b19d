package cursor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// deadLetter publishes the message to DEAD and retries until that succeeds. It returns an error
// only when ctx ends.
func (s *session[T]) deadLetter(ctx context.Context, m *Message[T], reason error) error {
	letter := deadletter.New(s.cfg.Cell, deadletter.Origin{
		Service: s.cfg.Service, Consumer: s.cfg.Name, Stream: s.cfg.Stream, Subject: m.Subject, Sequence: m.Sequence,
	}, m.Header, m.Data, reason)
	id := fmt.Sprintf("%s/%s/%d/%d", s.cfg.Name, s.cfg.Stream, s.cursor.epoch, m.Sequence)
	err := s.cfg.Retry.Do(ctx, func() error {
		err := deadletter.Publish(ctx, s.cfg.JetStream, letter, id)
		if err != nil && ctx.Err() != nil {
			return retry.Permanent(ctx.Err())
		}
		return err
	}, func(err error, pause time.Duration) {
		s.recordFailure(ctx, fmt.Errorf("publish message %d to DEAD: %w", m.Sequence, err), pause)
	})
	if err != nil {
		return fmt.Errorf("publish message %d to DEAD: %w", m.Sequence, err)
	}
	s.count.deadLetters.Inc()
	s.cfg.Logger.WarnContext(ctx, "published message to DEAD", slog.String(logkey.Consumer, s.cfg.Name),
		slog.String(logkey.Stream, s.cfg.Stream), slog.String(logkey.Subject, m.Subject),
		slog.Uint64(logkey.Sequence, m.Sequence), slog.String(logkey.Reason, reason.Error()))
	return nil
}
