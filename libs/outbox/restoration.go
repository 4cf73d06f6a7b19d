package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
)

// checkStreams compares each stream's end with what it has acknowledged before. It runs when the session begins and after each
// reconnect, since a restored server is one that was away.
func (s *session) checkStreams(ctx context.Context) error {
	if len(s.streams) > 0 && !s.cfg.Conn.IsConnected() { // a request would only time out
		return errDisconnected
	}
	for _, name := range slices.Sorted(maps.Keys(s.streams)) {
		stream, err := s.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // when somebody makes it again, its first acknowledgement tells
		}
		if err != nil {
			return s.serverError(ctx, "open stream "+name, err)
		}
		ends := stream.CachedInfo().State.LastSeq
		switch known := s.streams[name]; {
		case ends < known:
			if err := s.streamRestoredAt(ctx, name, ends); err != nil {
				return err
			}
		case ends > known:
			if err := s.checkAhead(ctx, stream, ends); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAhead looks at the end of a stream that goes on after what the database knows to be acknowledged. Usually the last publisher crashed
// before it could note that; a revision that was never given out means that the database is the older one.
func (s *session) checkAhead(ctx context.Context, stream jetstream.Stream, ends uint64) error {
	last, err := stream.GetMsg(ctx, ends)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return s.serverError(ctx, "read the end of stream "+stream.CachedInfo().Config.Name, err)
	}
	highest, err := s.queue.highest(ctx)
	if err != nil {
		return err
	}
	if revision := revisionOf(last.Header); revision > highest {
		return s.databaseRestored(ctx, revision)
	}
	return nil
}

func (s *session) serverError(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	return outageError{fmt.Errorf("%s: %w", doing, err)}
}

// streamRestored handles a stream that has acknowledged a sequence it had given before.
func (s *session) streamRestored(ctx context.Context, name string) error {
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return s.serverError(ctx, "open stream "+name, err)
	}
	return s.streamRestoredAt(ctx, name, stream.CachedInfo().State.LastSeq)
}

func (s *session) streamRestoredAt(ctx context.Context, name string, ends uint64) error {
	r := Restoration{Stream: name, Reason: fmt.Sprintf("stream %s ends at %d, but had acknowledged %d: it was restored from an older copy or made anew",
		name, ends, s.streams[name])}
	if err := s.queue.streamRestored(ctx, name, ends, func(tx pgx.Tx) error { return s.cfg.Restored(ctx, tx, r) }); err != nil {
		return err
	}
	s.streams[name] = ends
	s.note(ctx, r)
	return nil
}

func (s *session) databaseRestored(ctx context.Context, revision int64) error {
	r := Restoration{Reason: fmt.Sprintf("a stream has revision %d, which this database never gave out: the database was restored from an older copy", revision)}
	// The last message of one stream need not be the highest of all: a batch is published in several waves.
	above := revision + 10*int64(s.cfg.Batch)
	if err := s.queue.databaseRestored(ctx, above, func(tx pgx.Tx) error { return s.cfg.Restored(ctx, tx, r) }); err != nil {
		return err
	}
	s.note(ctx, r)
	return nil
}

// note forgets what the session held true before, and tells people.
func (s *session) note(ctx context.Context, r Restoration) {
	clear(s.remembered)
	clear(s.blocked)
	s.cfg.Metrics.restored.Inc()
	s.cfg.Logger.WarnContext(ctx, "restored from an older copy", "reason", r.Reason)
}
