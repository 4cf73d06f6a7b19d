package readmodel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// vacuumInterval is the number of messages between two vacuums of the shadow tables.
	vacuumInterval = 100_000
	// maxRemaining is the number of messages that may be replayed while the live consumers are paused. maxPasses limits
	// the attempts to get there.
	maxRemaining, maxPasses = 2_000, 10
	// lockTimeout is the time that a canceled rebuild may need to release its lock.
	lockTimeout, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// maxDifferences limits the differences that are described.
	maxDifferences = 100
)

// Rebuild rebuilds a read model. All fields are required.
type Rebuild struct {
	// Pool is connected to the database of the live tables.
	Pool *pgxpool.Pool
	// Open creates the shadow tables on a connection, and returns the streams to replay in the order of their names.
	Open func(ctx context.Context, conn *pgx.Conn) (Shadow, []*Stream, error)
	// Progress is called after each replayed batch. Its error cancels the rebuild.
	Progress func(Progress) error
}

// Shadow is the part of a rebuild that differs between services. A service embeds [ShadowTables].
type Shadow interface {
	postgres.Beginner
	Savepoints(tx pgx.Tx) postgres.Beginner
	Vacuum(ctx context.Context) error
	Compare(ctx context.Context, tx pgx.Tx, most int) ([]TableComparison, []string, error)
	Replace(ctx context.Context, tx pgx.Tx) error

	// Prepare is called in the transaction that has read the positions of the live consumers, before the messages up
	// to them are replayed. The last time paused is true: the consumers wait until the transaction ends.
	Prepare(ctx context.Context, tx pgx.Tx, paused bool) error
	// Complete adds what the streams no longer have. All messages are replayed, and the consumers are still paused.
	Complete(ctx context.Context, tx pgx.Tx) error
}

// Stream is a stream that a rebuild replays. Name and Consumer are required.
type Stream struct {
	Name string
	// Consumer writes to the shadow tables. Its cursor is that of the live consumer.
	Consumer interface {
		Position(ctx context.Context, tx pgx.Tx) (cursor.Position, error)
		LockPosition(ctx context.Context, tx pgx.Tx) (cursor.Position, error)
		Replay(
			ctx context.Context, db postgres.Beginner, r cursor.SequenceRange, progress func(sequence uint64),
		) (cursor.ReplayResult, error)
	}

	// Live is the position of the live consumer, as it was last read.
	Live cursor.Position
	// First is the sequence of the first message that the stream still has, 0 if there is none. FirstStored is the time
	// at which it was stored.
	First       uint64
	FirstStored time.Time

	replayed uint64
}

// Lost reports that the stream no longer has its first messages.
func (s *Stream) Lost() bool { return s.Live.Sequence > 0 && s.First != 1 }

// Restored reports that the stream was restored from an older copy at some time, and may lack any message.
func (s *Stream) Restored() bool { return s.Live.Epoch > 1 }

// Progress is the position of a rebuild in a stream.
type Progress struct {
	Stream string
	// Sequence of the last replayed message, and of the last one to replay.
	Sequence, Last uint64
}

// Outcome is the result of a rebuild.
type Outcome struct {
	Tables []TableComparison
	// Differences describes at most 100 differences between the live and the rebuilt tables.
	Differences []string
	// Replaced reports that the rebuilt rows are live.
	Replaced bool
}

// run is a running rebuild.
type run struct {
	*Rebuild
	Shadow

	conn    *pgx.Conn
	streams []*Stream
}

// Run replays the streams up to the positions of the live consumers, pauses these, replays what is left, and compares
// the tables. Unless check is true, it then replaces the live rows. It returns the fault conflict if another rebuild
// runs, or if a stream was restored meanwhile. Any error leaves the live tables unchanged.
func (r *Rebuild) Run(ctx context.Context, check bool) (Outcome, error) {
	held, err := r.lock(ctx)
	if err != nil {
		return Outcome{}, asFault(err)
	}
	// The lock and the shadow tables end with the connection.
	defer held.Release(ctx) //nolint:errcheck // the transaction is committed or rolled back
	b := &run{Rebuild: r, conn: held.Conn()}
	if b.Shadow, b.streams, err = r.Open(ctx, b.conn); err != nil {
		return Outcome{}, fmt.Errorf("rebuild: %w", err)
	}
	if err := b.catchUp(ctx); err != nil {
		return Outcome{}, asFault(err)
	}
	out, err := b.finish(ctx, check)
	if err != nil {
		return Outcome{}, asFault(err)
	}
	return out, nil
}

// lock acquires the lock that excludes other rebuilds.
func (r *Rebuild) lock(ctx context.Context) (*postgres.HeldLock, error) {
	for deadline := time.Now().Add(lockTimeout); ; {
		held, err := postgres.Lock{Name: "rebuild"}.Try(ctx, r.Pool)
		if err != nil || held != nil {
			return held, err
		}
		if time.Now().After(deadline) {
			return nil, fault.New(errcode.Conflict, "another rebuild is running: wait until it ends")
		}
		select {
		case <-ctx.Done():
			return nil, fault.From(ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

// asFault turns errors that the caller can handle into faults.
func asFault(err error) error {
	switch {
	case errors.Is(err, cursor.ErrStreamTooShort):
		return fault.Wrap(err, errcode.Conflict,
			"a stream was restored from an older copy and is not read again yet: rebuild later")
	case fault.CodeOf(err) != errcode.Internal:
		return err
	default:
		return fmt.Errorf("rebuild: %w", err)
	}
}

// catchUp replays the streams beside the live consumers, until at most maxRemaining messages remain.
func (b *run) catchUp(ctx context.Context) error {
	for range maxPasses {
		err := postgres.InTx(ctx, b.conn, func(tx pgx.Tx) error { return b.prepare(ctx, tx, false) })
		if err != nil {
			return err
		}
		most := uint64(0)
		for _, s := range b.streams {
			most = max(most, s.Live.Sequence-s.replayed)
			for s.replayed < s.Live.Sequence {
				if err := b.replay(ctx, s, b.Shadow, min(s.Live.Sequence, s.replayed+vacuumInterval)); err != nil {
					return err
				}
				if err := b.Vacuum(ctx); err != nil {
					return err
				}
			}
		}
		if most <= maxRemaining {
			return nil
		}
	}
	return nil
}

// prepare reads the positions of the live consumers, and pauses these if paused is true.
func (b *run) prepare(ctx context.Context, tx pgx.Tx, paused bool) error {
	for _, s := range b.streams {
		read := s.Consumer.Position
		if paused {
			read = s.Consumer.LockPosition
		}
		live, err := read(ctx, tx)
		if err != nil {
			return err
		}
		if s.Live.Epoch != 0 && live.Epoch != s.Live.Epoch || live.Sequence < s.replayed {
			return fault.New(errcode.Conflict, "stream %s was restored from an older copy meanwhile: rebuild again", s.Name)
		}
		s.Live = live
	}
	return b.Prepare(ctx, tx, paused)
}

// replay replays a stream up to a sequence.
func (b *run) replay(ctx context.Context, s *Stream, into postgres.Beginner, to uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result, err := s.Consumer.Replay(ctx, into, cursor.SequenceRange{From: s.replayed + 1, To: to}, func(sequence uint64) {
		if err := b.Progress(Progress{Stream: s.Name, Sequence: sequence, Last: s.Live.Sequence}); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	if s.First == 0 {
		s.First, s.FirstStored = result.First, result.FirstStored
	}
	s.replayed = to
	return nil
}

// finish pauses the live consumers, replays the remaining messages, compares and replaces.
func (b *run) finish(ctx context.Context, check bool) (Outcome, error) {
	var out Outcome
	errRollback := errors.New("check only")
	err := postgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.prepare(ctx, tx, true); err != nil {
			return err
		}
		for _, s := range b.streams {
			if s.replayed < s.Live.Sequence {
				if err := b.replay(ctx, s, b.Savepoints(tx), s.Live.Sequence); err != nil {
					return err
				}
			}
		}
		if err := b.Complete(ctx, tx); err != nil {
			return err
		}
		var err error
		if out.Tables, out.Differences, err = b.Compare(ctx, tx, maxDifferences); err != nil {
			return err
		}
		if check {
			return errRollback
		}
		out.Replaced = true
		return b.Replace(ctx, tx)
	})
	if err != nil && !errors.Is(err, errRollback) {
		return Outcome{}, err
	}
	return out, nil
}
