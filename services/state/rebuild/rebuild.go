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
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/postgres"
)

const (
	// replayChunk is the number of messages between two vacuums of the temporary tables.
	replayChunk = 100_000
	// maxRest is the number of messages that may be replayed while the live readers wait. maxPasses limits
	// the attempts to get there.
	maxRest   = 2_000
	maxPasses = 10
	// lockTimeout is for the session of a rebuild that has just been canceled.
	lockTimeout, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// maxDifferences limits the reported differences.
	maxDifferences = 100
)

// Rebuild rebuilds the read model. Its fields are required.
type Rebuild struct {
	// Readers are the live readers. The rebuild uses their settings and code.
	Readers *nats.Readers
	// OnProgress is called often. Its error ends the rebuild.
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
	// Differences are at most 100 sentences.
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
		Replay(ctx context.Context, db libpostgres.Beginner, r cursor.SequenceRange, progress func(uint64)) (cursor.ReplayResult, error)
	}
	live cursor.Position
	done uint64
	// first is the first sequence that the stream still has, stored at firstStored.
	first       uint64
	firstStored time.Time
}

// run is a running rebuild.
type run struct {
	*Rebuild

	ingest       *ingest.Ingest
	observations *postgres.Observations
	conn         *pgx.Conn
	shadow       *postgres.Shadow
	streams      []*stream
}

// Run rebuilds and, unless check is true, replaces the live tables. Fault conflict: another rebuild runs, or
// a stream was restored meanwhile. Any error leaves the live tables unchanged.
func (r *Rebuild) Run(ctx context.Context, check bool) (Outcome, error) {
	held, err := r.lock(ctx)
	if err != nil {
		return Outcome{}, err
	}
	// The lock and the temporary tables end with the connection.
	defer held.Release(ctx) //nolint:errcheck // the work is done or undone
	b, err := r.begin(ctx, held.Conn())
	if err != nil {
		return Outcome{}, fmt.Errorf("rebuild: %w", err)
	}
	if err := b.catchUp(ctx); err != nil {
		return Outcome{}, explain(err)
	}
	out, err := b.finish(ctx, check)
	if err != nil {
		return Outcome{}, explain(err)
	}
	return out, nil
}

// lock makes this rebuild the only one.
func (r *Rebuild) lock(ctx context.Context) (*libpostgres.HeldLock, error) {
	for deadline := time.Now().Add(lockTimeout); ; {
		held, err := libpostgres.Lock{Name: "rebuild"}.Try(ctx, r.Readers.Pool)
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
	// A replay is no news: no events, logs or metrics.
	readers := *r.Readers
	encoder := readers.Observations.Encoder
	readers.Observations = &postgres.Observations{
		Encoder:    encoder,
		Workspaces: &postgres.Workspaces{Encoder: encoder, RowsOnly: true},
	}
	readers.Logger = slog.New(slog.DiscardHandler)
	readers.Ingest = &ingest.Ingest{Logger: readers.Logger, ReadModelOnly: true}
	readers.Cursors = nil
	applied, err := readers.Applied()
	if err != nil {
		return nil, err
	}
	observed, err := readers.Observed()
	if err != nil {
		return nil, err
	}
	shadow, err := postgres.NewShadow(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &run{
		Rebuild: r, ingest: readers.Ingest, observations: readers.Observations, conn: conn, shadow: shadow,
		// Positions are locked in the order of the names.
		streams: []*stream{
			{name: topology.StreamApplied, consumer: applied},
			{name: topology.StreamObserved, consumer: observed},
		},
	}, nil
}

// explain makes faults of errors that the caller can act on.
func explain(err error) error {
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

// catchUp replays the streams beside the live readers until little is left.
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
			most = max(most, s.live.Sequence-s.done)
			for s.done < s.live.Sequence {
				if err := b.replay(ctx, s, b.shadow, min(s.live.Sequence, s.done+replayChunk)); err != nil {
					return err
				}
				if err := b.shadow.Vacuum(ctx); err != nil {
					return err
				}
			}
		}
		if most <= maxRest {
			return nil
		}
	}
	return nil
}

// readPositions reads the positions of the live readers, and optionally locks them.
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
		if s.live.Epoch != 0 && live.Epoch != s.live.Epoch || live.Sequence < s.done {
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
	got, err := s.consumer.Replay(ctx, into, cursor.SequenceRange{From: s.done + 1, To: to}, func(sequence uint64) {
		if err := b.OnProgress(Progress{Stream: s.name, Sequence: sequence, Last: s.live.Sequence}); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	if s.first == 0 {
		s.first, s.firstStored = got.First, got.FirstStored
	}
	s.done = to
	return nil
}

// finish replays the rest while the live readers wait, compares, and replaces.
func (b *run) finish(ctx context.Context, check bool) (Outcome, error) {
	var out Outcome
	errChecked := errors.New("check only")
	err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.complete(ctx, tx); err != nil {
			return err
		}
		var err error
		if out.Tables, out.Differences, err = b.shadow.Compare(ctx, tx, maxDifferences); err != nil {
			return err
		}
		if check {
			return errChecked
		}
		out.Replaced = true
		return b.shadow.Replace(ctx, tx)
	})
	if err != nil && !errors.Is(err, errChecked) {
		return Outcome{}, err
	}
	return out, nil
}

// complete brings the temporary tables to the locked positions of the live readers.
func (b *run) complete(ctx context.Context, tx pgx.Tx) error {
	if err := b.readPositions(ctx, tx, true); err != nil {
		return err
	}
	if err := b.shadow.Sync(ctx, tx); err != nil {
		return err
	}
	savepoints := b.shadow.Savepoints(tx)
	for _, s := range b.streams {
		if s.done < s.live.Sequence {
			if err := b.replay(ctx, s, savepoints, s.live.Sequence); err != nil {
				return err
			}
		}
	}
	// Users wait from here on.
	if err := b.shadow.LockLive(ctx, tx); err != nil {
		return err
	}
	if err := b.shadow.Sync(ctx, tx); err != nil {
		return err
	}
	return libpostgres.InTx(ctx, savepoints, func(tx pgx.Tx) error {
		applied, observed := b.streams[0].missing(), b.streams[1].missing()
		if err := b.shadow.KeepMissing(ctx, tx, observed, applied); err != nil {
			return err
		}
		ids, err := b.shadow.Unfinished(ctx, tx)
		if err != nil {
			return err
		}
		if err := b.ingest.Recompute(ctx, b.observations.In(tx), ids); err != nil {
			return err
		}
		return b.shadow.KeepDue(ctx, tx)
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
