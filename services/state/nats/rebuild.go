package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/postgres"
)

const (
	// stretch is how many messages are read between looks after the temporary tables.
	stretch = 100_000
	// rest is how many messages may be left to be read while the live readers are held, and passes how often that is tried for.
	rest   = 2_000
	passes = 10
	// settling is how many workspaces are computed at once.
	settling = 500
	// lockPatience is for one that was canceled a moment ago: its session may not have ended yet.
	lockPatience, lockInterval = 2 * time.Second, 50 * time.Millisecond
	// shownDifferences is how many are told as sentences.
	shownDifferences = 100
)

// Rebuild makes everything that is derived from the streams OBSERVED and APPLIED anew, beside what is there; see the package's documentation. Its fields are required.
type Rebuild struct {
	// Ingest is that of the live readers: its code, settings and consumers are used.
	Ingest *Ingest
	// Told hears how far it is; it may be called often.
	Told func(RebuildProgress) error
}

// RebuildProgress is how far a rebuild has read a stream.
type RebuildProgress struct {
	Stream         string
	Sequence, Last uint64
}

// RebuildOutcome is what a rebuild found.
type RebuildOutcome struct {
	Tables []postgres.RebuiltTable
	// Differences are the first hundred as sentences.
	Differences []string
	// Replaced is that the rebuilt tables are in place.
	Replaced bool
}

// replayed is a consumer and how far it was read again.
type replayed struct {
	name, stream string
	consumer     interface {
		Position(ctx context.Context, tx pgx.Tx) (cursor.Position, error)
		LockPosition(ctx context.Context, tx pgx.Tx) (cursor.Position, error)
		Replay(ctx context.Context, db libpostgres.Beginner, s cursor.SequenceRange, progress func(uint64)) (cursor.ReplayResult, error)
	}
	at     cursor.Position
	done   uint64
	first  uint64
	stored time.Time
}

// rebuilding is one rebuild under way.
type rebuilding struct {
	*Rebuild

	ingest  *Ingest
	conn    *pgx.Conn
	shadow  *postgres.Shadow
	streams []*replayed
}

// Run rebuilds, and unless it shall only check puts in place what it made. Fault conflict: another one is under way, or a stream was restored meanwhile.
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
		return RebuildOutcome{}, b.explain(err)
	}
	out, err := b.finish(ctx, check)
	if err != nil {
		return RebuildOutcome{}, b.explain(err)
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
	ingest := *r.Ingest
	ingest.Workspaces = &postgres.Workspaces{Cell: r.Ingest.Cell, Render: r.Ingest.Workspaces.Render, Derived: true}
	// What is read again is no news.
	ingest.Metrics, ingest.Cursors, ingest.Logger = nil, nil, slog.New(slog.DiscardHandler)
	applied, err := ingest.Applied()
	if err != nil {
		return nil, err
	}
	observed, err := ingest.Observed()
	if err != nil {
		return nil, err
	}
	shadow, err := postgres.NewShadow(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &rebuilding{
		Rebuild: r, ingest: &ingest, conn: conn, shadow: shadow,
		// In the order of their names, in which they are held.
		streams: []*replayed{
			{name: appliedConsumer, stream: topology.StreamApplied, consumer: applied}, {name: observedConsumer, stream: topology.StreamObserved, consumer: observed},
		},
	}, nil
}

// explain makes faults of what its caller can do something about.
func (b *rebuilding) explain(err error) error {
	if errors.Is(err, cursor.ErrStreamTooShort) {
		return fault.Wrap(err, errcode.Conflict, "a stream was restored from an older copy and has not been read again yet: rebuild in a while")
	}
	if fault.CodeOf(err) != errcode.Internal {
		return err
	}
	return fmt.Errorf("rebuild: %w", err)
}

// catchUp reads the streams while the live readers go on, until little is left.
func (b *rebuilding) catchUp(ctx context.Context) error {
	for range passes {
		// The positions come first: what was wanted when those messages were taken in, is wanted in what is brought over then.
		err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
			if err := b.locate(ctx, tx, false); err != nil {
				return err
			}
			return b.shadow.Sync(ctx, tx)
		})
		if err != nil {
			return err
		}
		most := uint64(0)
		for _, s := range b.streams {
			most = max(most, s.at.Sequence-s.done)
			for s.done < s.at.Sequence {
				if err := b.read(ctx, s, b.shadow, min(s.at.Sequence, s.done+stretch)); err != nil {
					return err
				}
				if err := b.shadow.Vacuum(ctx); err != nil {
					return err
				}
			}
		}
		if most <= rest {
			return nil
		}
	}
	return nil
}

// locate asks how far the live readers are, and holds them there if wanted.
func (b *rebuilding) locate(ctx context.Context, tx pgx.Tx, hold bool) error {
	for _, s := range b.streams {
		ask := s.consumer.Position
		if hold {
			ask = s.consumer.LockPosition
		}
		at, err := ask(ctx, tx)
		if err != nil {
			return err
		}
		if s.at.Epoch != 0 && at.Epoch != s.at.Epoch || at.Sequence < s.done {
			return fault.New(errcode.Conflict, "stream %s was restored from an older copy meanwhile: rebuild again", s.stream)
		}
		s.at = at
	}
	return nil
}

// read reads a stream on, up to a sequence.
func (b *rebuilding) read(ctx context.Context, s *replayed, into libpostgres.Beginner, to uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	got, err := s.consumer.Replay(ctx, into, cursor.SequenceRange{From: s.done + 1, To: to}, func(sequence uint64) {
		if err := b.Told(RebuildProgress{Stream: s.stream, Sequence: sequence, Last: s.at.Sequence}); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	if s.first == 0 {
		s.first, s.stored = got.First, got.FirstStored
	}
	s.done = to
	return nil
}

// finish reads the rest while the live readers are held, compares, and puts in place.
func (b *rebuilding) finish(ctx context.Context, check bool) (RebuildOutcome, error) {
	var out RebuildOutcome
	errChecked := errors.New("only checked")
	err := libpostgres.InTx(ctx, b.conn, func(tx pgx.Tx) error {
		if err := b.complete(ctx, tx); err != nil {
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

// complete brings the shadows to where the live readers are held.
func (b *rebuilding) complete(ctx context.Context, tx pgx.Tx) error {
	if err := b.locate(ctx, tx, true); err != nil {
		return err
	}
	if err := b.shadow.Sync(ctx, tx); err != nil {
		return err
	}
	safe := b.shadow.Savepoints(tx)
	for _, s := range b.streams {
		if s.done < s.at.Sequence {
			if err := b.read(ctx, s, safe, s.at.Sequence); err != nil {
				return err
			}
		}
	}
	// Only now, so that people wait for moments.
	if err := b.shadow.LockReal(ctx, tx); err != nil {
		return err
	}
	if err := b.shadow.Sync(ctx, tx); err != nil {
		return err
	}
	return libpostgres.InTx(ctx, safe, func(tx pgx.Tx) error {
		applied, observed := b.streams[0].forgotten(), b.streams[1].forgotten()
		if err := b.shadow.KeepForgotten(ctx, tx, observed, applied); err != nil {
			return err
		}
		ids, err := b.shadow.Unfinished(ctx, tx)
		if err != nil {
			return err
		}
		if err := b.ingest.settle(ctx, tx, ids); err != nil {
			return err
		}
		return b.shadow.KeepDue(ctx, tx)
	})
}

// forgotten is what the stream no longer tells.
func (s *replayed) forgotten() postgres.Forgotten {
	f := postgres.Forgotten{Restored: s.at.Epoch > 1}
	switch {
	case s.first > 1:
		f.Before = s.stored
	case s.first == 0 && s.at.Sequence > 0:
		f.Before = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) // it tells nothing any more
	}
	return f
}

// settle computes workspaces from everything that is stored, whatever they were before.
func (i *Ingest) settle(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) error {
	for some := range slices.Chunk(ids, settling) {
		concerns := make(map[uuid.UUID]*concern, len(some))
		for _, id := range some {
			concerns[id] = &concern{}
		}
		if err := i.conclude(ctx, tx, concerns); err != nil {
			return err
		}
	}
	return nil
}
