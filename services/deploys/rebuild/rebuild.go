// Package rebuild recreates all tables that are derived from the stream OBSERVED.
//
// A rebuild reads the stream again into shadow tables, with the code of the live reader, while the live reader
// continues. It then pauses the live reader, reads the remaining messages, compares the tables and replaces them. It
// publishes nothing. If it fails, nothing changes. It keeps state from messages that the stream no longer has.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
)

const (
	// vacuumInterval is the number of messages between vacuums of the shadow tables.
	vacuumInterval = 100_000
	// maxRemaining is the maximum number of messages that are read while the live reader is paused.
	maxRemaining = 2_000
	// maxPasses is the maximum number of attempts to catch up with the live reader.
	maxPasses = 10
	// A rebuild waits this long for the lock, because the session of a canceled rebuild may still hold it.
	lockTimeout, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// maxDifferences limits the reported differences.
	maxDifferences = 100
)

// Rebuild is one rebuild. All fields are required.
type Rebuild struct {
	// Reader has the settings of the live reader.
	Reader *nats.Reader
	// Progress is called after each batch with the rebuilt and the last sequence number. Its error cancels the rebuild.
	Progress func(sequence, last uint64) error
}

// Outcome of a rebuild.
type Outcome struct {
	Tables []postgres.RebuiltTable
	// Differences describes the first 100 differences between the old and the rebuilt tables.
	Differences []string
	// Replaced reports that the rebuilt tables have replaced the old ones.
	Replaced bool
}

// run is a rebuild in progress.
type run struct {
	*Rebuild

	processor *ingest.Processor
	consumer  *nats.Consumer
	conn      *pgx.Conn
	shadow    *postgres.Shadow
	// live is the position of the live reader, done the last rebuilt message, first the first message of the stream.
	live        cursor.Position
	done, first uint64
}

// Run rebuilds the tables and compares them with the old ones. Unless check is set, it replaces the old ones. It
// returns a conflict if another rebuild is running, or if the stream was restored meanwhile.
func (r *Rebuild) Run(ctx context.Context, check bool) (Outcome, error) {
	lock, err := r.lock(ctx)
	if err != nil {
		return Outcome{}, err
	}
	// Release closes the session, which drops the lock and the temporary tables.
	defer lock.Release(ctx) //nolint:errcheck // all work is committed or rolled back
	b, err := r.prepare(ctx, lock.Conn())
	if err != nil {
		return Outcome{}, fmt.Errorf("rebuild: %w", err)
	}
	if err := b.catchUp(ctx); err != nil {
		return Outcome{}, explain(err)
	}
	outcome, err := b.finish(ctx, check)
	if err != nil {
		return Outcome{}, explain(err)
	}
	return outcome, nil
}

// lock takes the lock that excludes other rebuilds.
func (r *Rebuild) lock(ctx context.Context) (*libpostgres.HeldLock, error) {
	for deadline := time.Now().Add(lockTimeout); ; {
		held, err := libpostgres.Lock{Name: "rebuild"}.Try(ctx, r.Reader.Pool)
		if err != nil {
			return nil, fmt.Errorf("rebuild: %w", err)
		}
		if held != nil {
			return held, nil
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

func (r *Rebuild) prepare(ctx context.Context, conn *pgx.Conn) (*run, error) {
	b := &run{Rebuild: r, conn: conn}
	var err error
	if b.consumer, b.processor, err = r.Reader.RebuildConsumer(); err != nil {
		return nil, err
	}
	stream, err := r.Reader.JetStream.Stream(ctx, topology.StreamObserved)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", topology.StreamObserved, err)
	}
	b.first = stream.CachedInfo().State.FirstSeq
	if b.shadow, err = postgres.NewShadow(ctx, conn); err != nil {
		return nil, err
	}
	return b, nil
}

// explain turns errors that the caller can act on into faults.
func explain(err error) error {
	if errors.Is(err, cursor.ErrStreamTooShort) {
		return fault.Wrap(err, errcode.Conflict,
			"the stream was restored from an older copy and is not read again yet: rebuild later")
	}
	if fault.CodeOf(err) != errcode.Internal {
		return err
	}
	return fmt.Errorf("rebuild: %w", err)
}

// catchUp reads the stream until at most maxRemaining messages remain up to the position of the live reader.
func (b *run) catchUp(ctx context.Context) error {
	for range maxPasses {
		err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error { return b.updateLive(ctx, tx, b.consumer.Position) })
		if err != nil {
			return err
		}
		remaining := b.live.Sequence - b.done
		for b.done < b.live.Sequence {
			if err := b.read(ctx, b.shadow, min(b.live.Sequence, b.done+vacuumInterval)); err != nil {
				return err
			}
			if err := b.shadow.Vacuum(ctx); err != nil {
				return err
			}
		}
		if remaining <= maxRemaining {
			return nil
		}
	}
	return nil
}

// updateLive reads the position of the live reader. It fails if the stream was restored since the rebuild started.
func (b *run) updateLive(
	ctx context.Context, tx pgx.Tx, position func(context.Context, pgx.Tx) (cursor.Position, error),
) error {
	live, err := position(ctx, tx)
	if err != nil {
		return err
	}
	if b.live.Epoch != 0 && live.Epoch != b.live.Epoch || live.Sequence < b.done {
		return fault.New(errcode.Conflict, "stream %s was restored from an older copy meanwhile: rebuild again",
			topology.StreamObserved)
	}
	b.live = live
	mode := ownership.Replay
	if live.Epoch > 1 {
		mode = ownership.ReplayRestored
	}
	b.processor.SetMode(mode) // it also loads the claims that were stored meanwhile
	return nil
}

// read reads the stream up to a sequence number.
func (b *run) read(ctx context.Context, into libpostgres.Beginner, to uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_, err := b.consumer.Replay(ctx, into, cursor.SequenceRange{From: b.done + 1, To: to}, func(sequence uint64) {
		if err := b.Progress(sequence, b.live.Sequence); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	b.done = to
	return nil
}

// finish pauses the live reader, reads the remaining messages, compares the tables and replaces them.
func (b *run) finish(ctx context.Context, check bool) (Outcome, error) {
	var outcome Outcome
	errCheckOnly := errors.New("check only: roll back")
	err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.updateLive(ctx, tx, b.consumer.LockPosition); err != nil {
			return err
		}
		if b.done < b.live.Sequence {
			if err := b.read(ctx, b.shadow.Savepoints(tx), b.live.Sequence); err != nil {
				return err
			}
		}
		lost := postgres.LostMessages{Beginning: b.first > 1, Restored: b.live.Epoch > 1}
		if err := b.shadow.Keep(ctx, tx, lost); err != nil {
			return err
		}
		var err error
		outcome.Tables, outcome.Differences, err = b.shadow.Compare(ctx, tx, maxDifferences)
		if err != nil {
			return err
		}
		if check {
			return errCheckOnly
		}
		outcome.Replaced = true
		return b.shadow.Replace(ctx, tx)
	})
	if err != nil && !errors.Is(err, errCheckOnly) {
		return Outcome{}, err
	}
	return outcome, nil
}
