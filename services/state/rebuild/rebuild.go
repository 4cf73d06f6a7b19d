package rebuild

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
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/judge"
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/postgres"
)

const (
	// replayChunk is the number of messages between two vacuums of the temporary tables.
	replayChunk = 100_000
	// maxRemaining limits the messages that are replayed while the live consumers are blocked. maxPasses limits the
	// replays before that.
	maxRemaining = 2_000
	maxPasses    = 10
	// lockTimeout allows a canceled rebuild to release its lock.
	lockTimeout, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// maxDifferences limits the reported differences.
	maxDifferences = 100
)

// Rebuild rebuilds the read model. Its fields are required.
type Rebuild struct {
	// Consumers are the live consumers. The rebuild uses their settings and code.
	Consumers *nats.Consumers
	// OnProgress is called after each batch. If it returns an error, the rebuild stops.
	OnProgress func(Progress) error
}

// Progress is the position of a rebuild in a stream.
type Progress struct {
	Stream         string
	Sequence, Last uint64
}

// Outcome is the result of a rebuild.
type Outcome struct {
	Tables []postgres.RebuiltTable
	// Differences describes at most 100 differences.
	Differences []string
	// Replaced reports that the rebuilt tables are live.
	Replaced bool
}

// stream is a consumer and the progress of its replay.
type stream struct {
	name     string
	consumer interface {
		Position(ctx context.Context, tx pgx.Tx) (cursor.Position, error)
		LockPosition(ctx context.Context, tx pgx.Tx) (cursor.Position, error)
		Replay(
			ctx context.Context, db libpostgres.Beginner, r cursor.SequenceRange, progress func(uint64),
		) (cursor.ReplayResult, error)
	}
	live     cursor.Position
	replayed uint64
	// first is the first sequence that the stream still has, stored at firstStored.
	first       uint64
	firstStored time.Time
}

// run is a running rebuild.
type run struct {
	*Rebuild

	ingest       *ingest.Ingest
	ingestStores *postgres.IngestStores
	conn         *pgx.Conn
	shadow       *postgres.Shadow
	streams      []*stream
}

// Run rebuilds the read model. It replaces the live rows, unless check is true. It returns the fault conflict if
// another rebuild runs, or if a stream was restored meanwhile. Any error leaves the live tables unchanged.
func (r *Rebuild) Run(ctx context.Context, check bool) (Outcome, error) {
	held, err := r.lock(ctx)
	if err != nil {
		return Outcome{}, err
	}
	// The lock and the temporary tables end with the connection.
	defer held.Release(ctx) //nolint:errcheck // the transaction is committed or rolled back
	b, err := r.begin(ctx, held.Conn())
	if err != nil {
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

// lock acquires the rebuild lock. It returns the fault conflict if another rebuild runs.
func (r *Rebuild) lock(ctx context.Context) (*libpostgres.HeldLock, error) {
	for deadline := time.Now().Add(lockTimeout); ; {
		held, err := libpostgres.Lock{Name: "rebuild"}.Try(ctx, r.Consumers.Pool)
		if err != nil {
			return nil, fmt.Errorf("rebuild: %w", err)
		}
		if held != nil {
			return held, nil
		}
		if time.Now().After(deadline) {
			return nil, fault.New(errcode.Conflict, "another rebuild is running: wait for its end")
		}
		select {
		case <-ctx.Done():
			return nil, fault.From(ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

func (r *Rebuild) begin(ctx context.Context, conn *pgx.Conn) (*run, error) {
	// A replay must not publish events, write logs or count metrics.
	consumers := *r.Consumers
	consumers.IngestStores = &postgres.IngestStores{
		Workspaces: &postgres.Workspaces{NoNotify: true}, MaxMembers: r.Consumers.IngestStores.MaxMembers,
	}
	consumers.Logger = slog.New(slog.DiscardHandler)
	consumers.Ingest = &ingest.Ingest{
		Logger: consumers.Logger, ReadModelOnly: true, MaxObjects: r.Consumers.Ingest.MaxObjects,
	}
	consumers.CursorMetrics = nil
	applied, err := consumers.Applied()
	if err != nil {
		return nil, err
	}
	observed, err := consumers.Observed()
	if err != nil {
		return nil, err
	}
	shadow, err := postgres.NewShadow(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &run{
		Rebuild: r, ingest: consumers.Ingest, ingestStores: consumers.IngestStores, conn: conn, shadow: shadow,
		// Positions are locked in the order of the names.
		streams: []*stream{
			{name: topology.StreamApplied, consumer: applied},
			{name: topology.StreamObserved, consumer: observed},
		},
	}, nil
}

// asFault turns errors that the caller can handle into faults.
func asFault(err error) error {
	if errors.Is(err, cursor.ErrStreamTooShort) {
		return fault.Wrap(
			err,
			errcode.Conflict,
			"a stream was restored from an older backup and is being read again: rebuild later",
		)
	}
	if fault.CodeOf(err) != errcode.Internal {
		return err
	}
	return fmt.Errorf("rebuild: %w", err)
}

// catchUp replays the streams while the live consumers run, until at most maxRemaining messages remain.
func (b *run) catchUp(ctx context.Context) error {
	for range maxPasses {
		// Read the positions first: the desired state that is copied next is at least as new.
		err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
			if err := b.readPositions(ctx, tx, false); err != nil {
				return err
			}
			return b.shadow.Sync(ctx, tx)
		})
		if err != nil {
			return err
		}
		most := uint64(0)
		for _, s := range b.streams {
			most = max(most, s.live.Sequence-s.replayed)
			for s.replayed < s.live.Sequence {
				if err := b.replay(ctx, s, b.shadow, min(s.live.Sequence, s.replayed+replayChunk)); err != nil {
					return err
				}
				if err := b.shadow.Vacuum(ctx); err != nil {
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

// readPositions reads the positions of the live consumers, and optionally locks them.
func (b *run) readPositions(ctx context.Context, tx pgx.Tx, lock bool) error {
	for _, s := range b.streams {
		read := s.consumer.Position
		if lock {
			read = s.consumer.LockPosition
		}
		live, err := read(ctx, tx)
		if err != nil {
			return err
		}
		if s.live.Epoch != 0 && live.Epoch != s.live.Epoch || live.Sequence < s.replayed {
			return fault.New(errcode.Conflict, "stream %s was restored from an older backup meanwhile: rebuild again", s.name)
		}
		s.live = live
	}
	return nil
}

// replay replays a stream up to a sequence.
func (b *run) replay(ctx context.Context, s *stream, into libpostgres.Beginner, to uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result, err := s.consumer.Replay(ctx, into, cursor.SequenceRange{From: s.replayed + 1, To: to}, func(sequence uint64) {
		if err := b.OnProgress(Progress{Stream: s.name, Sequence: sequence, Last: s.live.Sequence}); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	if s.first == 0 {
		s.first, s.firstStored = result.First, result.FirstStored
	}
	s.replayed = to
	return nil
}

// finish blocks the live consumers, replays the remaining messages, compares and replaces.
func (b *run) finish(ctx context.Context, check bool) (Outcome, error) {
	var out Outcome
	errRollback := errors.New("check only")
	err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.complete(ctx, tx); err != nil {
			return err
		}
		var err error
		if out.Tables, out.Differences, err = b.shadow.Compare(ctx, tx, maxDifferences); err != nil {
			return err
		}
		if check {
			return errRollback
		}
		out.Replaced = true
		return b.shadow.Replace(ctx, tx)
	})
	if err != nil && !errors.Is(err, errRollback) {
		return Outcome{}, err
	}
	return out, nil
}

// complete replays up to the locked cursors, then adds the values that the streams no longer have.
func (b *run) complete(ctx context.Context, tx pgx.Tx) error {
	if err := b.readPositions(ctx, tx, true); err != nil {
		return err
	}
	// The shadow tables have no resyncs to judge. Until the positions are released, no other one ends.
	live := judge.Judge{
		Pool: b.Consumers.Pool, Logger: b.Consumers.Logger,
		Ingest: b.Consumers.Ingest, IngestStores: b.Consumers.IngestStores,
	}
	if err := live.All(ctx, live.Pool); err != nil {
		return err
	}
	if err := b.shadow.Sync(ctx, tx); err != nil {
		return err
	}
	savepoints := b.shadow.Savepoints(tx)
	for _, s := range b.streams {
		if s.replayed < s.live.Sequence {
			if err := b.replay(ctx, s, savepoints, s.live.Sequence); err != nil {
				return err
			}
		}
	}
	// From here on, user transactions are blocked.
	if err := b.shadow.LockLive(ctx, tx); err != nil {
		return err
	}
	if err := b.shadow.Sync(ctx, tx); err != nil {
		return err
	}
	return libpostgres.InTx(ctx, savepoints, func(tx pgx.Tx) error {
		applied, observed := b.streams[0].missing(), b.streams[1].missing()
		if err := b.shadow.CopyMissing(ctx, tx, observed, applied); err != nil {
			return err
		}
		ids, err := b.shadow.Unfinished(ctx, tx)
		if err != nil {
			return err
		}
		if err := b.ingest.Recompute(ctx, b.ingestStores.In(tx), ids); err != nil {
			return err
		}
		return b.shadow.CopyDue(ctx, tx)
	})
}

// missing describes what the stream no longer has.
func (s *stream) missing() postgres.Missing {
	m := postgres.Missing{Restored: s.live.Epoch > 1}
	switch {
	case s.first > 1:
		m.Before = s.firstStored
	case s.first == 0 && s.live.Sequence > 0:
		m.Before = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) // the stream is empty
	}
	return m
}
