package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
)

// checkStreams compares the last sequence of each stream with the last acknowledged one. It runs at
// the start of the session and after each reconnect, because a restored server disconnects its
// clients.
func (s *session) checkStreams(ctx context.Context) error {
	if len(s.streams) > 0 && !s.cfg.Conn.IsConnected() { // a request would only time out
		return errDisconnected
	}
	for _, name := range slices.Sorted(maps.Keys(s.streams)) {
		stream, err := s.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // detected later: the first acknowledgement of the recreated stream has a low sequence
		}
		if err != nil {
			return s.serverError(ctx, "open stream "+name, err)
		}
		last := stream.CachedInfo().State.LastSeq
		switch known := s.streams[name]; {
		case last < known:
			if err := s.handleRestoredStreamAt(ctx, name, last); err != nil {
				return err
			}
		case last > known:
			if err := s.checkAhead(ctx, stream, last); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAhead reads the last message of a stream that is ahead of the database. Usually the previous publisher
// crashed before it stored the acknowledgement. A revision that was never assigned proves a restored database.
func (s *session) checkAhead(ctx context.Context, stream jetstream.Stream, sequence uint64) error {
	last, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return s.serverError(ctx, "read the last message of stream "+stream.CachedInfo().Config.Name, err)
	}
	highest, err := s.queue.highest(ctx)
	if err != nil {
		return err
	}
	if revision := revisionOf(last.Header); revision > highest {
		return s.handleRestoredDatabase(ctx, revision)
	}
	return nil
}

func (s *session) serverError(ctx context.Context, action string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", action, ctx.Err())
	}
	return outageError{fmt.Errorf("%s: %w", action, err)}
}

// handleRestoredStream handles a stream that has acknowledged an already used sequence.
func (s *session) handleRestoredStream(ctx context.Context, name string) error {
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return s.serverError(ctx, "open stream "+name, err)
	}
	return s.handleRestoredStreamAt(ctx, name, stream.CachedInfo().State.LastSeq)
}

func (s *session) handleRestoredStreamAt(ctx context.Context, name string, last uint64) error {
	r := Restoration{Stream: name, Reason: fmt.Sprintf(
		"stream %s ends at sequence %d after it acknowledged %d: it was restored from an older copy or recreated",
		name, last, s.streams[name])}
	restored := func(tx pgx.Tx) error { return s.cfg.Restored(ctx, tx, r) }
	if err := s.queue.storeRestoredStream(ctx, name, last, restored); err != nil {
		return err
	}
	s.streams[name] = last
	s.resetAfterRestoration(ctx, r)
	return nil
}

func (s *session) handleRestoredDatabase(ctx context.Context, revision int64) error {
	r := Restoration{Reason: fmt.Sprintf(
		"a stream has revision %d, which this database never assigned: the database was restored from an older copy",
		revision)}
	// Another stream can have a higher revision, because a batch is published in several rounds.
	above := revision + 10*int64(s.cfg.Batch)
	if err := s.queue.recordRestoredDatabase(ctx, above); err != nil {
		return err
	}
	return s.restoreDatabase(ctx, r, above)
}

// finishRestoration repeats what an earlier session has recorded and not finished.
func (s *session) finishRestoration(ctx context.Context) error {
	above, unfinished := s.streams[restoredDatabase]
	if !unfinished {
		return nil
	}
	delete(s.streams, restoredDatabase)
	r := Restoration{Reason: "the database was restored from an older copy; an earlier attempt to publish again failed"}
	return s.restoreDatabase(ctx, r, int64(above))
}

func (s *session) restoreDatabase(ctx context.Context, r Restoration, above int64) error {
	if err := s.queue.raiseIDs(ctx, above); err != nil {
		return err
	}
	restored := func(tx pgx.Tx) error { return s.cfg.Restored(ctx, tx, r) }
	if err := s.queue.finishRestoredDatabase(ctx, restored); err != nil {
		return err
	}
	s.resetAfterRestoration(ctx, r)
	return nil
}

// resetAfterRestoration drops what the session knew before a restoration, and logs the restoration.
func (s *session) resetAfterRestoration(ctx context.Context, r Restoration) {
	clear(s.lastKnown)
	clear(s.failing)
	s.cfg.Metrics.restored.Inc()
	s.cfg.Logger.WarnContext(ctx, "outbox publisher detected a restoration", slog.String(logkey.Reason, r.Reason))
}
