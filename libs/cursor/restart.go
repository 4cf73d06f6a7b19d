package cursor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/jetstreamapi"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
)

// checkStream opens the stream and begins a new epoch when the stream was restored or recreated.
func (s *session[T]) checkStream(ctx context.Context) error {
	stream, err := openStream(ctx, s.cfg.JetStream, s.cfg.Stream)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	state := streamState{created: info.Created.UnixNano(), lastSequence: info.State.LastSeq}
	if last := s.cursor.last.sequence; last > 0 && last <= state.lastSequence {
		m, err := jetstreamapi.Get(ctx, s.cfg.JetStream, s.cfg.Stream, jetstreamapi.GetRequest{Sequence: last})
		switch {
		case err == nil:
			at := markOf(m.Subject, m.Header, m.Data, m.Sequence, m.Time)
			state.atCursor = &at
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return serverError{fmt.Errorf("read message %d of stream %s: %w", last, s.cfg.Stream, err)}
		}
	}
	if reason := restartReason(s.cursor, state); reason != "" {
		return s.restart(ctx, reason, state.created)
	}
	// It differs if the stream was recreated from a backup with the same messages. The cursor is still valid.
	s.cursor.created = state.created
	return nil
}

// restart begins an epoch at the start of the stream.
func (s *session[T]) restart(ctx context.Context, reason string, created int64) error {
	to := cursorRow{epoch: s.cursor.epoch + 1, created: created}
	err := postgres.InTx(ctx, s.conn, func(tx pgx.Tx) error {
		if err := s.cfg.key().move(ctx, tx, s.cursor, to); err != nil {
			return err
		}
		return s.cfg.Restarted(ctx, tx, Restart{Epoch: to.epoch, Reason: reason})
	})
	if err != nil {
		return fmt.Errorf("begin epoch %d of stream %s: %w", to.epoch, s.cfg.Stream, err)
	}
	s.cursor = to
	s.count.restarts.Inc()
	s.logger.InfoContext(ctx, "reading the stream from its start",
		slog.Int64(logkey.Epoch, to.epoch), slog.String(logkey.Reason, reason))
	return nil
}

// openStream returns the stream. Each error is a serverError.
func openStream(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	if !js.Conn().IsConnected() { // a request would only time out
		return nil, serverError{errors.New("NATS is not connected")}
	}
	// Nobody answers while the servers elect a leader of the stream.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, serverError{fmt.Errorf("open stream %s: %w", name, err)}
	}
	return stream, nil
}
