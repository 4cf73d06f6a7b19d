package rebuild

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
)

// Stream reads the stream JOBS.
type Stream interface {
	// Bounds returns the sequences of the first and of the last message; 0 if there is none.
	Bounds(ctx context.Context) (first, last uint64, err error)
	// Read calls take with events in pages, and the sequence of the last event of each.
	Read(ctx context.Context, from, to uint64, take func(changes []job.Change, last uint64) error) error
}

const (
	// publishTimeout is how long changes are blocked at most until the outbox is empty.
	publishTimeout  = 15 * time.Second
	publishInterval = 10 * time.Millisecond
)

// New returns a rebuild. Progress is called after each page; its error cancels the rebuild.
func New(pool *pgxpool.Pool, stream Stream, progress func(readmodel.Progress) error) *readmodel.Rebuild {
	open := func(ctx context.Context, conn *pgx.Conn) (readmodel.Shadow, []*readmodel.Stream, error) {
		tables, err := postgres.NewShadow(ctx, conn)
		if err != nil {
			return nil, nil, err
		}
		jobs := &readmodel.Stream{Name: "JOBS", Consumer: &consumer{stream, tables}}
		return &shadow{tables, jobs}, []*readmodel.Stream{jobs}, nil
	}
	return &readmodel.Rebuild{Pool: pool, Open: open, Progress: progress}
}

type shadow struct {
	*postgres.Shadow

	jobs *readmodel.Stream
}

func (*shadow) Prepare(context.Context, pgx.Tx, bool) error { return nil }

func (s *shadow) Complete(ctx context.Context, tx pgx.Tx) error {
	if !s.jobs.Lost() {
		return nil
	}
	return s.Keep(ctx, tx)
}

// consumer replays the stream. The live table has no reader: its position is the end of the stream.
type consumer struct {
	stream Stream
	tables *postgres.Shadow
}

func (c *consumer) Position(ctx context.Context, _ pgx.Tx) (cursor.Position, error) {
	_, last, err := c.stream.Bounds(ctx)
	return cursor.Position{Epoch: 1, Sequence: last}, err
}

// LockPosition blocks changes of jobs, waits until all are published, and returns the end of the stream.
func (c *consumer) LockPosition(ctx context.Context, tx pgx.Tx) (cursor.Position, error) {
	if err := c.tables.LockJobs(ctx, tx); err != nil {
		return cursor.Position{}, err
	}
	for deadline := time.Now().Add(publishTimeout); ; {
		waiting, err := postgres.Unpublished(ctx, tx)
		if err != nil {
			return cursor.Position{}, err
		}
		if waiting == 0 {
			return c.Position(ctx, tx)
		}
		if time.Now().After(deadline) {
			return cursor.Position{}, fault.New(errcode.Unavailable,
				"%d events of jobs are not published after %s: check NATS, and rebuild again", waiting, publishTimeout)
		}
		if err := retry.Sleep(ctx, publishInterval); err != nil {
			return cursor.Position{}, fmt.Errorf("wait until events are published: %w", err)
		}
	}
}

func (c *consumer) Replay(
	ctx context.Context, db libpostgres.Beginner, r cursor.SequenceRange, progress func(sequence uint64),
) (cursor.ReplayResult, error) {
	first, _, err := c.stream.Bounds(ctx)
	if err != nil {
		return cursor.ReplayResult{}, err
	}
	result := cursor.ReplayResult{First: first}
	err = c.stream.Read(ctx, r.From, r.To, func(changes []job.Change, last uint64) error {
		err := libpostgres.InTx(ctx, db, func(tx pgx.Tx) error { return postgres.PutReplayed(ctx, tx, changes) })
		if err != nil {
			return err
		}
		result.Last, result.Handled = last, result.Handled+uint64(len(changes))
		progress(last)
		return ctx.Err()
	})
	return result, err
}
