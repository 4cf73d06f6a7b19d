package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/deploys/postgres"
)

const (
	// stretch is how many messages are read between looks after the temporary tables.
	stretch = 100_000
	// rest is how many messages may be left to be read while the live reader is held, and passes how often that is tried for.
	rest   = 2_000
	passes = 10
	// lockPatience is for one that was canceled a moment ago: its session may not have ended yet.
	lockPatience, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// shownDifferences is how many are told as sentences.
	shownDifferences = 100
)

// Rebuild makes everything that is derived from the stream OBSERVED anew, beside what is there; see the package's documentation. Its fields are required.
type Rebuild struct {
	// Ingest is that of the live reader: its code and settings are used.
	Ingest *Ingest
	// Told hears how far it is; it may be called often. Its error ends the rebuild.
	Told func(sequence, last uint64) error
}

// RebuildOutcome is what a rebuild found.
type RebuildOutcome struct {
	Tables []postgres.RebuiltTable
	// Differences are the first hundred as sentences.
	Differences []string
	// Replaced is that the rebuilt tables are in place.
	Replaced bool
}

// rebuilding is one rebuild under way.
type rebuilding struct {
	*Rebuild

	again    *Ingest
	conn     *pgx.Conn
	shadow   *postgres.Shadow
	consumer *cursor.Consumer[Observed]
	at       cursor.Position
	done     uint64
	// first is the first sequence of the stream.
	first uint64
}

// Run rebuilds, and unless it shall only check puts in place what it made. Fault conflict: another one is under way, or the stream was restored meanwhile.
// When ctx ends, or anything fails, nothing is changed.
func (r *Rebuild) Run(ctx context.Context, check bool) (RebuildOutcome, error) {
	held, err := r.lock(ctx)
	if err != nil {
		return RebuildOutcome{}, err
	}
	// With the connection go the lock and the temporary tables.
	defer held.Release(ctx) //nolint:errcheck // what it was needed for is done, or was undone
	b, err := r.begin(ctx, held.Conn())
	if err != nil {
		return RebuildOutcome{}, fmt.Errorf("rebuild: %w", err)
	}
	if err := b.catchUp(ctx); err != nil {
		return RebuildOutcome{}, explain(err)
	}
	out, err := b.finish(ctx, check)
	if err != nil {
		return RebuildOutcome{}, explain(err)
	}
	return out, nil
}

// lock makes it the only one.
func (r *Rebuild) lock(ctx context.Context) (*libpostgres.HeldLock, error) {
	for last := time.Now().Add(lockPatience); ; {
		held, err := libpostgres.Lock{Name: "rebuild"}.Try(ctx, r.Ingest.Pool)
		if err != nil {
			return nil, fmt.Errorf("rebuild: %w", err)
		}
		if held != nil {
			return held, nil
		}
		if time.Now().After(last) {
			return nil, fault.New(errcode.Conflict, "a rebuild is under way already: wait for its end")
		}
		select {
		case <-ctx.Done():
			return nil, fault.From(ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

func (r *Rebuild) begin(ctx context.Context, conn *pgx.Conn) (*rebuilding, error) {
	// What is read again is no news.
	again := &Ingest{
		Pool: r.Ingest.Pool, JetStream: r.Ingest.JetStream, Cell: r.Ingest.Cell, Logger: slog.New(slog.DiscardHandler), Store: &postgres.Store{Silent: true},
		Environments: r.Ingest.Environments, History: r.Ingest.History, Batch: r.Ingest.Batch, Cached: r.Ingest.Cached, silent: true,
	}
	consumer, err := again.Consumer()
	if err != nil {
		return nil, err
	}
	stream, err := r.Ingest.JetStream.Stream(ctx, topology.StreamObserved)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", topology.StreamObserved, err)
	}
	shadow, err := postgres.NewShadow(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &rebuilding{Rebuild: r, again: again, conn: conn, shadow: shadow, consumer: consumer, first: stream.CachedInfo().State.FirstSeq}, nil
}

// explain makes faults of what its caller can do something about.
func explain(err error) error {
	if errors.Is(err, cursor.ErrStreamTooShort) {
		return fault.Wrap(err, errcode.Conflict, "the stream was restored from an older copy and has not been read again yet: rebuild in a while")
	}
	if fault.CodeOf(err) != errcode.Internal {
		return err
	}
	return fmt.Errorf("rebuild: %w", err)
}

// catchUp reads the stream while the live reader goes on, until little is left.
func (b *rebuilding) catchUp(ctx context.Context) error {
	for range passes {
		if err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error { return b.locate(ctx, tx, b.consumer.Position) }); err != nil {
			return err
		}
		left := b.at.Sequence - b.done
		for b.done < b.at.Sequence {
			if err := b.read(ctx, b.shadow, min(b.at.Sequence, b.done+stretch)); err != nil {
				return err
			}
			if err := b.shadow.Vacuum(ctx); err != nil {
				return err
			}
		}
		if left <= rest {
			return nil
		}
	}
	return nil
}

// locate asks how far the live reader is.
func (b *rebuilding) locate(ctx context.Context, tx pgx.Tx, ask func(context.Context, pgx.Tx) (cursor.Position, error)) error {
	at, err := ask(ctx, tx)
	if err != nil {
		return err
	}
	if b.at.Epoch != 0 && at.Epoch != b.at.Epoch || at.Sequence < b.done {
		return fault.New(errcode.Conflict, "stream %s was restored from an older copy meanwhile: rebuild again", topology.StreamObserved)
	}
	b.at, b.again.restored = at, at.Epoch > 1
	// What is claimed meanwhile counts for what comes after.
	clear(b.again.known.claims)
	return nil
}

// read reads the stream on, up to a sequence.
func (b *rebuilding) read(ctx context.Context, into libpostgres.Beginner, to uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_, err := b.consumer.Replay(ctx, into, cursor.SequenceRange{From: b.done + 1, To: to}, func(sequence uint64) {
		if err := b.Told(sequence, b.at.Sequence); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	b.done = to
	return nil
}

// finish reads the rest while the live reader is held, compares, and puts in place.
func (b *rebuilding) finish(ctx context.Context, check bool) (RebuildOutcome, error) {
	var out RebuildOutcome
	errChecked := errors.New("only checked")
	err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.locate(ctx, tx, b.consumer.LockPosition); err != nil {
			return err
		}
		if b.done < b.at.Sequence {
			if err := b.read(ctx, b.shadow.Savepoints(tx), b.at.Sequence); err != nil {
				return err
			}
		}
		if err := b.shadow.Keep(ctx, tx, postgres.Forgotten{Beginning: b.first > 1, Restored: b.at.Epoch > 1}); err != nil {
			return err
		}
		var err error
		if out.Tables, out.Differences, err = b.shadow.Compare(ctx, tx, shownDifferences); err != nil {
			return err
		}
		if check {
			return errChecked
		}
		out.Replaced = true
		return b.shadow.Replace(ctx, tx)
	})
	if err != nil && !errors.Is(err, errChecked) {
		return RebuildOutcome{}, err
	}
	return out, nil
}
