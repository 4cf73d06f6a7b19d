package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
)

// SequenceRange is a part of a stream, by sequences that both belong to it.
type SequenceRange struct{ From, To uint64 }

// ReplayResult is what a replay came upon.
type ReplayResult struct {
	// First is the sequence of the first message that the stream still had, and FirstStored when that was stored. 0 when there was none.
	First       uint64
	FirstStored time.Time
	// Last is the sequence of the last message, up to Stretch.To.
	Last uint64
	// Handled messages, and Skipped ones: malformed, or called Poison by the handler.
	Handled, Skipped uint64
}

// ErrStreamTooShort says that a stream ends before the stretch that is to be replayed.
var ErrStreamTooShort = errors.New("the stream was restored from an older copy")

// Replay reads a stretch of the stream again, in the stream's order, through Decode and Handle of the consumer's configuration: for a read model that is
// made anew elsewhere. Each batch is a transaction begun on db, which is a connection, or a transaction whose savepoints the batches become. The cursor is
// neither read nor moved, nothing is published: what is malformed or poisonous, and so on DEAD since it was read first, is skipped and counted. Messages that
// the stream has dropped meanwhile are not there to be replayed. progress is told the sequence of the last message of each batch that is committed.
//
// The memory used is that of three batches. While NATS is away the replay waits, and goes on where it was. Any other failure ends it, of
// the database or of the handler: what it has committed by then is up to its Replayed.Last.
func (c *Consumer[T]) Replay(ctx context.Context, db postgres.Beginner, stretch SequenceRange, progress func(sequence uint64)) (ReplayResult, error) {
	r := &replay[T]{cfg: c.cfg, hooks: c.hooks, db: db, stretch: stretch, progress: progress}
	if stretch.From > 0 {
		r.out.Last = stretch.From - 1
	}
	outage := c.cfg.Retry.Backoff()
	for {
		before := r.out.Last
		err := r.follow(ctx)
		var away serverError
		switch {
		case err == nil:
			return r.out, nil
		case ctx.Err() != nil:
			return r.out, fmt.Errorf("replay stream %s: %w", c.cfg.Stream, context.Cause(ctx))
		case !errors.As(err, &away):
			return r.out, fmt.Errorf("replay stream %s: %w", c.cfg.Stream, err)
		}
		if r.out.Last != before {
			outage.Reset()
		}
		c.cfg.Logger.WarnContext(ctx, "a replay waits", "consumer", c.cfg.Name, "stream", c.cfg.Stream, "sequence", r.out.Last, "error", err)
		if err := connected(ctx, c.cfg.JetStream.Conn(), outage.Next()); err != nil {
			return r.out, fmt.Errorf("replay stream %s: %w", c.cfg.Stream, err)
		}
	}
}

// replay is one replay under way.
type replay[T any] struct {
	cfg      Config[T]
	hooks    hooks
	db       postgres.Beginner
	stretch  SequenceRange
	progress func(sequence uint64)
	out      ReplayResult
}

// errEnded ends the reading of what has been replayed whole.
var errEnded = errors.New("nothing is left to replay")

// follow reads until the end of the stretch, or until something fails.
func (r *replay[T]) follow(ctx context.Context) error {
	status := r.cfg.JetStream.Conn().StatusChanged()
	defer r.cfg.JetStream.Conn().RemoveStatusListener(status)
	stream, err := openStream(ctx, r.cfg.JetStream, r.cfg.Stream)
	if err != nil {
		return err
	}
	if ends := stream.CachedInfo().State.LastSeq; ends < r.stretch.To {
		return fmt.Errorf("%w: it ends at %d, before %d", ErrStreamTooShort, ends, r.stretch.To)
	}
	batches := make(chan *batch[T])
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return r.read(groupCtx, stream, batches, status)
	})
	group.Go(func() error {
		for b := range batches {
			last := b.lag == 0 || b.last.Sequence >= r.stretch.To
			if b.end(r.stretch.To) {
				// Not with the group's context: the transaction under way ends well when NATS goes away.
				if err := r.take(ctx, b); err != nil {
					return err
				}
			}
			if last {
				return errEnded
			}
		}
		return nil
	})
	if err := group.Wait(); !errors.Is(err, errEnded) {
		return err //nolint:wrapcheck // both say what failed
	}
	return nil
}

// read fills the channel, which takes what it wants of it.
func (r *replay[T]) read(ctx context.Context, stream jetstream.Stream, batches chan<- *batch[T], status <-chan nats.Status) error {
	ctx, release := whileUnchanged(ctx, status)
	defer release()
	if r.out.Last >= r.stretch.To {
		return errEnded
	}
	reader, err := openReader(ctx, r.cfg, stream, r.out.Last, batches)
	if err != nil {
		return serverError{err}
	}
	if reader.consumer.CachedInfo().NumPending == 0 {
		return errEnded
	}
	// What was pending may have grown too old.
	reader.idle, reader.idleAfter = func(ctx context.Context) error {
		info, err := reader.consumer.Info(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("ask what is left: %w", err)
		case info.NumPending == 0:
			return errEnded
		default:
			return nil
		}
	}, r.hooks.idle
	return serverError{reader.run(ctx)}
}

// end takes out of the batch what comes after the sequence, and says whether anything is left.
func (b *batch[T]) end(at uint64) bool {
	if b.last.Sequence <= at {
		return true
	}
	b.last.Sequence = 0
	for len(b.messages) > 0 && b.messages[len(b.messages)-1].Sequence > at {
		b.messages = b.messages[:len(b.messages)-1]
	}
	for len(b.malformed) > 0 && b.malformed[len(b.malformed)-1].message.Sequence > at {
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

// first is the first message of the batch, malformed or not.
func (b *batch[T]) first() Message[T] {
	if len(b.malformed) > 0 && (len(b.messages) == 0 || b.malformed[0].message.Sequence < b.messages[0].Sequence) {
		return b.malformed[0].message
	}
	return b.messages[0]
}

// take commits a batch without what cannot be handled.
func (r *replay[T]) take(ctx context.Context, b *batch[T]) error {
	if r.out.First == 0 {
		first := b.first()
		r.out.First, r.out.FirstStored = first.Sequence, first.Stored
	}
	skipped := len(b.malformed)
	for len(b.messages) > 0 {
		err := postgres.InTx(ctx, r.db, func(tx pgx.Tx) error { return r.cfg.Handle(ctx, tx, b.messages) })
		if bad := poisons(err, b); len(bad) > 0 {
			for _, p := range bad {
				b.remove(p.Sequence)
				skipped++
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("messages up to %d cannot be handled: %w", b.last.Sequence, err)
		}
		break
	}
	r.out.Last = b.last.Sequence
	r.out.Handled += uint64(len(b.messages))
	r.out.Skipped += uint64(skipped)
	r.progress(r.out.Last)
	return nil
}

// connected waits for the time given, or until the connection is there again.
func connected(ctx context.Context, conn *nats.Conn, atMost time.Duration) error {
	back := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(back)
	if err := retry.SleepOrWake(ctx, atMost, back); err != nil {
		return fmt.Errorf("wait for NATS: %w", err)
	}
	return nil
}
