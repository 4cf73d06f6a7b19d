// Package rebuild rebuilds all tables that follow from the stream OBSERVED.
//
// A rebuild reads the stream again into shadow tables, with the code of the live reader, while the live reader goes on.
// It then pauses the live reader, reads the rest, compares, and replaces the tables. It publishes nothing. If it fails,
// nothing changes. State from messages that the stream no longer has is kept.
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
	// chunk is the number of messages between vacuums of the temporary tables.
	chunk = 100_000
	// maxRest is the number of messages that may be read while the live reader is paused.
	maxRest = 2_000
	// maxPasses limits the attempts to catch up with the live reader.
	maxPasses = 10
	// The session of a rebuild that was canceled a moment ago may still hold the lock.
	lockTimeout, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// maxDifferences limits the reported differences.
	maxDifferences = 100
)

// Rebuild is one rebuild. All fields are required.
type Rebuild struct {
	// Reader has the settings of the live reader.
	Reader *nats.Reader
	// Progress is called often. Its error cancels the rebuild.
	Progress func(sequence, last uint64) error
}

// Outcome of a rebuild.
type Outcome struct {
	Tables []postgres.RebuiltTable
	// Differences are the first hundred, as sentences.
	Differences []string
	// Replaced reports that the rebuilt tables are in place.
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

// Run rebuilds and compares. Unless check is set, it replaces the tables. Fault conflict: another rebuild is running, or
// the stream was restored meanwhile.
func (r *Rebuild) Run(ctx context.Context, check bool) (Outcome, error) {
	lock, err := r.lock(ctx)
	if err != nil {
		return Outcome{}, err
	}
	// Releasing closes the session: the lock and the temporary tables go with it.
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

// lock excludes other rebuilds.
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

// catchUp reads the stream until the live reader is less than maxRest messages ahead.
func (b *run) catchUp(ctx context.Context) error {
	for range maxPasses {
		err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error { return b.locate(ctx, tx, b.consumer.Position) })
		if err != nil {
			return err
		}
		rest := b.live.Sequence - b.done
		for b.done < b.live.Sequence {
			if err := b.read(ctx, b.shadow, min(b.live.Sequence, b.done+chunk)); err != nil {
				return err
			}
			if err := b.shadow.Vacuum(ctx); err != nil {
				return err
			}
		}
		if rest <= maxRest {
			return nil
		}
	}
	return nil
}

// locate reads the position of the live reader.
func (b *run) locate(
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
	mode := ownership.Reread
	if live.Epoch > 1 {
		mode = ownership.RereadRestored
	}
	b.processor.SetMode(mode) // and load the claims that were stored meanwhile
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

// finish pauses the live reader, reads the rest, compares, and replaces the tables.
func (b *run) finish(ctx context.Context, check bool) (Outcome, error) {
	var outcome Outcome
	errCheckOnly := errors.New("check only: roll back")
	err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.locate(ctx, tx, b.consumer.LockPosition); err != nil {
			return err
		}
		if b.done < b.live.Sequence {
			if err := b.read(ctx, b.shadow.Savepoints(tx), b.live.Sequence); err != nil {
				return err
			}
		}
		missing := postgres.Forgotten{Beginning: b.first > 1, Restored: b.live.Epoch > 1}
		if err := b.shadow.Keep(ctx, tx, missing); err != nil {
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
