package cursor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
)

// SequenceRange is a part of a stream, both ends included.
type SequenceRange struct{ From, To uint64 }

// ReplayResult describes what a replay read.
type ReplayResult struct {
	// First is the sequence of the first message that the stream still held, 0 when there was none.
	First uint64
	// FirstStored is the time at which the stream stored that message.
	FirstStored time.Time
	// Last is the sequence of the last message, up to SequenceRange.To.
	Last uint64
	// Handled counts the handled messages; Skipped those that Run would publish to DEAD.
	Handled, Skipped uint64
}

// ErrStreamTooShort reports that a stream ends before the range to replay.
var ErrStreamTooShort = errors.New("the stream ends before the range to replay: it was restored from an older copy")

// Replay reads a range of the stream again through the consumer's Decode and Handle, in stream order, to rebuild
// a read model elsewhere. Each batch is one transaction on db. db is a connection, or a transaction that is used
// with savepoints.
//
// Replay does not use the cursor and publishes nothing. It skips and counts the messages that Run would publish to
// DEAD. It calls progress with the last sequence of each committed batch.
//
// It holds at most three batches in memory. While NATS is down it waits, then continues. It returns any other
// failure of the database or the handler; the batches up to ReplayResult.Last are then committed.
func (c *Consumer[T]) Replay(
	ctx context.Context, db postgres.Beginner, sequences SequenceRange, progress func(sequence uint64),
) (ReplayResult, error) {
	r := &replay[T]{
		cfg: c.cfg, hooks: c.hooks, db: db, sequences: sequences, progress: progress,
		name: c.cfg.Name + "-replay-" + strings.ToLower(rand.Text()[:8]),
	}
	if sequences.From > 0 {
		r.result.Last = sequences.From - 1
	}
	outage := c.cfg.Retry.Backoff()
	for {
		before := r.result.Last
		err := r.readRange(ctx)
		var serverErr serverError
		switch {
		case err == nil:
			return r.result, nil
		case errors.Is(err, errResponseEnded) && ctx.Err() == nil:
			r.single = singleRequests
			continue
		case ctx.Err() != nil:
			return r.result, fmt.Errorf("replay stream %s: %w", c.cfg.Stream, context.Cause(ctx))
		case !errors.As(err, &serverErr):
			return r.result, fmt.Errorf("replay stream %s: %w", c.cfg.Stream, err)
		}
		if r.result.Last != before {
			outage.Reset()
		}
		pause := outage.Next()
		c.logger().WarnContext(ctx, "replay failed; waiting for NATS", slog.Uint64(logkey.Sequence, r.result.Last),
			slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
		if err := sleepUntilConnected(ctx, c.cfg.JetStream.Conn(), pause); err != nil {
			return r.result, fmt.Errorf("replay stream %s: %w", c.cfg.Stream, err)
		}
	}
}

// replay is one call of Replay.
type replay[T any] struct {
	cfg       Config[T]
	name      string // of the consumer on the server
	hooks     hooks
	db        postgres.Beginner
	sequences SequenceRange
	progress  func(sequence uint64)
	result    ReplayResult
	single    int // messages that the next reader requests one by one
}

// errRangeDone reports that the last message of the range was read.
var errRangeDone = errors.New("end of the replayed range")

// readRange reads until the end of the range or a failure.
func (r *replay[T]) readRange(ctx context.Context) error {
	status := r.cfg.JetStream.Conn().StatusChanged()
	defer r.cfg.JetStream.Conn().RemoveStatusListener(status)
	stream, err := openStream(ctx, r.cfg.JetStream, r.cfg.Stream)
	if err != nil {
		return err
	}
	if last := stream.CachedInfo().State.LastSeq; last < r.sequences.To {
		return fmt.Errorf("%w: it ends at %d, before %d", ErrStreamTooShort, last, r.sequences.To)
	}
	batches := make(chan *batch[T])
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return r.read(groupCtx, batches, status)
	})
	group.Go(func() error {
		for b := range batches {
			last := b.lag == 0 || b.last.Sequence >= r.sequences.To
			if b.truncate(r.sequences.To) {
				// Not with the group's context: the current transaction finishes when NATS
				// disconnects.
				if err := r.handleBatch(ctx, b); err != nil {
					return err
				}
			}
			if last {
				return errRangeDone
			}
		}
		return nil
	})
	err = group.Wait()
	switch {
	case errors.Is(err, errRangeDone):
		return nil
	case err == nil:
		return errResponseEnded
	default:
		return err //nolint:wrapcheck // both wrap
	}
}

// read fills the channel until the end of the range, a failure, a status change of the connection, or until a new
// reader has to continue.
func (r *replay[T]) read(ctx context.Context, batches chan<- *batch[T], status <-chan nats.Status) error {
	ctx, release := untilStatusChange(ctx, status)
	defer release()
	if r.result.Last >= r.sequences.To {
		return errRangeDone
	}
	reader, err := openReader(ctx, r.cfg, r.name, r.result.Last, r.single, batches)
	if err != nil {
		return serverError{err}
	}
	if reader.consumer.CachedInfo().NumPending == 0 {
		return errRangeDone
	}
	// The pending messages may have expired.
	reader.onIdle, reader.idleAfter = func(ctx context.Context) error {
		info, err := reader.consumer.Info(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("read the number of pending messages: %w", err)
		case info.NumPending == 0:
			return errRangeDone
		default:
			return nil
		}
	}, r.hooks.idle
	if err := reader.run(ctx); !errors.Is(err, errResponseEnded) {
		return serverError{err}
	}
	return nil
}

// truncate removes the messages after the sequence and reports whether any is left.
func (b *batch[T]) truncate(to uint64) bool {
	if b.last.Sequence <= to {
		return true
	}
	b.last.Sequence = 0
	for len(b.messages) > 0 && b.messages[len(b.messages)-1].Sequence > to {
		b.messages = b.messages[:len(b.messages)-1]
	}
	for len(b.malformed) > 0 && b.malformed[len(b.malformed)-1].message.Sequence > to {
		b.malformed = b.malformed[:len(b.malformed)-1]
	}
	if n := len(b.messages); n > 0 {
		b.last = b.messages[n-1]
	}
	if n := len(b.malformed); n > 0 && b.malformed[n-1].message.Sequence > b.last.Sequence {
		b.last = b.malformed[n-1].message
	}
	return b.last.Sequence > 0
}

// first returns the first message of the batch, malformed or not.
func (b *batch[T]) first() Message[T] {
	if len(b.malformed) == 0 {
		return b.messages[0]
	}
	malformed := b.malformed[0].message
	if len(b.messages) == 0 || malformed.Sequence < b.messages[0].Sequence {
		return malformed
	}
	return b.messages[0]
}

// handleBatch commits a batch without the messages that cannot be handled.
func (r *replay[T]) handleBatch(ctx context.Context, b *batch[T]) error {
	if r.result.First == 0 {
		first := b.first()
		r.result.First, r.result.FirstStored = first.Sequence, first.Stored
	}
	r.result.Skipped += uint64(len(b.malformed))
	return b.handle(ctx, r)
}

// reject counts the message.
func (r *replay[T]) reject(context.Context, *Message[T], error) error {
	r.result.Skipped++
	return nil
}

// pause does not wait: Run has waited when it read the message.
func (r *replay[T]) pause(context.Context, *Message[T], error, int) error { return nil }

func (r *replay[T]) commit(ctx context.Context, b *batch[T]) error {
	if len(b.messages) > 0 {
		err := postgres.InTx(ctx, r.db, func(tx pgx.Tx) error { return r.cfg.Handle(ctx, tx, b.messages) })
		if err != nil {
			return fmt.Errorf("handle messages up to %d: %w", b.last.Sequence, asDataError(err))
		}
	}
	r.result.Last = b.last.Sequence
	r.result.Handled += uint64(len(b.messages))
	r.progress(r.result.Last)
	return nil
}

// sleepUntilConnected waits for the duration, or until the connection is restored.
func sleepUntilConnected(ctx context.Context, conn *nats.Conn, duration time.Duration) error {
	connected := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(connected)
	if err := retry.SleepOrWake(ctx, duration, connected); err != nil {
		return fmt.Errorf("wait for NATS: %w", err)
	}
	return nil
}
