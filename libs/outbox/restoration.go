package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
)

// streamEnd is the end of a stream, as the server reports it.
type streamEnd struct {
	name string
	// acknowledged is the highest sequence that the session knew when it asked the server.
	acknowledged uint64
	last         uint64
	// revision of the last message, 0 unless the stream is ahead of the database.
	revision int64
}

// checkStreams asks for the end of each stream, in the background. It runs at the start of the session and after each
// reconnect, because a restored server disconnects its clients. After a reconnect, publishing continues meanwhile: a
// stream without a leader delays no other.
func (s *session) checkStreams(ctx context.Context) {
	s.stopChecks()
	ctx, cancel := context.WithCancel(ctx)
	var checks sync.WaitGroup
	s.stopChecks = func() { cancel(); checks.Wait() }
	s.unchecked, s.ends = len(s.streams), make(chan streamEnd, len(s.streams))
	clear(s.restored)
	for name, acknowledged := range s.streams {
		end := streamEnd{name: name, acknowledged: acknowledged}
		checks.Go(func() {
			failed := func(err error, pause time.Duration) {
				s.cfg.Metrics.failures.Inc()
				s.cfg.Logger.DebugContext(ctx, "checking the end of a stream failed; retrying",
					slog.String(logkey.Stream, name), slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
			}
			if outageRetry.Do(ctx, func() error { return end.read(ctx, s.js) }, failed) == nil {
				s.ends <- end
			}
		})
	}
}

// read reads the end of the stream.
func (e *streamEnd) read(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, e.name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		e.last = e.acknowledged // detected later: the first acknowledgement of the recreated stream has a low sequence
		return nil
	}
	if err != nil {
		return fmt.Errorf("open stream %s: %w", e.name, err)
	}
	if e.last = stream.CachedInfo().State.LastSeq; e.last <= e.acknowledged {
		return nil
	}
	last, err := stream.GetMsg(ctx, e.last)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last message of stream %s: %w", e.name, err)
	}
	e.revision = revisionOf(last.Header)
	return nil
}

// awaitChecks waits for the ends of all streams, and compares them.
func (s *session) awaitChecks(ctx context.Context) error {
	slow := time.NewTicker(waitInterval)
	defer slow.Stop()
	for s.unchecked > 0 {
		select {
		case end := <-s.ends:
			if err := s.compare(ctx, end); err != nil {
				return err
			}
		case <-slow.C:
			s.warn(ctx, "outbox publisher waits for NATS to report the ends of its streams")
		case <-ctx.Done():
			return fmt.Errorf("check the streams: %w", ctx.Err())
		}
	}
	return nil
}

// finishChecks compares the ends of streams that have arrived with the last acknowledged sequences.
func (s *session) finishChecks(ctx context.Context) error {
	for {
		select {
		case end := <-s.ends:
			if err := s.compare(ctx, end); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// compare detects restorations. A stream that is ahead of the database is usual: the previous publisher crashed before
// it stored the acknowledgement. A revision that was never assigned proves a restored database.
func (s *session) compare(ctx context.Context, end streamEnd) error {
	s.unchecked--
	// An acknowledgement may have shown meanwhile that the stream was restored.
	if end.last < end.acknowledged && !s.restored[end.name] {
		return s.handleRestoredStreamAt(ctx, end.name, end.last)
	}
	if end.revision == 0 {
		return nil
	}
	highest, err := s.queue.highest(ctx)
	if err != nil {
		return err
	}
	if end.revision > highest {
		return s.handleRestoredDatabase(ctx, end.revision)
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
	s.streams[name], s.restored[name] = last, true
	for _, p := range s.slow {
		delete(p.before, name) // its acknowledgement shows the same restoration
	}
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
