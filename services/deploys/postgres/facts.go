package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const factColumns = `select id, workload, sequence, fact, rollout_id, occurred_at, observed_at, data, stream_sequence from facts where `

func scanFact(row pgx.CollectableRow) (Fact, error) {
	var f Fact
	err := row.Scan(&f.ID, &f.Workload, &f.Sequence, &f.Fact, &f.RolloutID, &f.OccurredAt, &f.ObservedAt, &f.Data, &f.StreamSequence)
	f.OccurredAt, f.ObservedAt = f.OccurredAt.UTC(), f.ObservedAt.UTC()
	return f, err //nolint:wrapcheck // the caller says of what
}

func (s *Store) facts(ctx context.Context, db Querier, where string, args ...any) ([]Fact, error) {
	rows, err := db.Query(ctx, factColumns+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read facts: %w", err)
	}
	facts, err := pgx.CollectRows(rows, scanFact)
	if err != nil {
		return nil, fmt.Errorf("read facts: %w", err)
	}
	return facts, nil
}

// Known is which of the facts are stored, and the last sequence of each of the workloads that has any.
func (s *Store) Known(ctx context.Context, tx pgx.Tx, ids []string, workloads []uuid.UUID) (map[string]bool, map[uuid.UUID]int64, error) {
	known, last := map[string]bool{}, map[uuid.UUID]int64{}
	var b pgx.Batch
	b.Queue(`select id from facts where id = any($1)`, ids).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, id := range found {
			known[id] = true
		}
		return err //nolint:wrapcheck // Known says of what
	})
	b.Queue(`select workload, max(sequence) from facts where workload = any($1) group by workload`, workloads).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var sequence int64
		_, err := pgx.ForEachRow(rows, []any{&id, &sequence}, func() error {
			last[id] = sequence
			return nil
		})
		return err //nolint:wrapcheck // Known says of what
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, nil, fmt.Errorf("look for facts that are known: %w", err)
	}
	return known, last, nil
}

// FactsBetween are the facts of a workload with sequences above one and below another, in their order, recorded since a time.
func (s *Store) FactsBetween(ctx context.Context, db Querier, workload uuid.UUID, above, below int64, since time.Time) ([]Fact, error) {
	return s.facts(ctx, db, `workload = $1 and sequence > $2 and sequence < $3 and recorded_at >= $4 order by sequence`, workload, above, below, since)
}

// Fact is a fact by its id; ErrNoFact when there is none.
func (s *Store) Fact(ctx context.Context, db Querier, id string) (Fact, error) {
	found, err := s.facts(ctx, db, `id = $1`, id)
	if err != nil {
		return Fact{}, err
	}
	if len(found) == 0 {
		return Fact{}, fmt.Errorf("fact %s: %w", id, ErrNoFact)
	}
	return found[0], nil
}

// LastTold is the fact that is furthest on the stream as far as is known; ErrNoFact when none is.
func (s *Store) LastTold(ctx context.Context, db Querier) (Fact, error) {
	return s.oneTold(ctx, db, `stream_sequence > 0 order by stream_sequence desc limit 1`)
}

// ToldAt is the fact that is furthest on the stream up to a position; ErrNoFact when none is.
func (s *Store) ToldAt(ctx context.Context, db Querier, position int64) (Fact, error) {
	return s.oneTold(ctx, db, `stream_sequence > 0 and stream_sequence <= $1 order by stream_sequence desc limit 1`, position)
}

func (s *Store) oneTold(ctx context.Context, db Querier, where string, args ...any) (Fact, error) {
	found, err := s.facts(ctx, db, where, args...)
	if err != nil {
		return Fact{}, err
	}
	if len(found) == 0 {
		return Fact{}, ErrNoFact
	}
	return found[0], nil
}

// Untold are workloads with facts whose position is not known, some at a time; a workload's first such sequence comes with it.
func (s *Store) Untold(ctx context.Context, db Querier, most int) (map[uuid.UUID]int64, error) {
	rows, err := db.Query(ctx, `select workload, min(sequence) from facts where stream_sequence = 0 group by workload limit $1`, most)
	if err != nil {
		return nil, fmt.Errorf("look for facts that were not told: %w", err)
	}
	out := map[uuid.UUID]int64{}
	var id uuid.UUID
	var sequence int64
	_, err = pgx.ForEachRow(rows, []any{&id, &sequence}, func() error {
		out[id] = sequence
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for facts that were not told: %w", err)
	}
	return out, nil
}

// Executor is a pool, a connection or a transaction.
type Executor interface {
	Querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// ForgetPositions forgets the positions of the facts above one: the stream holds other messages there.
func (s *Store) ForgetPositions(ctx context.Context, db Executor, above int64) error {
	var b pgx.Batch
	b.Queue(`update facts set stream_sequence = 0 where stream_sequence > $1`, above)
	if err := db.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("forget positions on the stream above %d: %w", above, err)
	}
	return nil
}

// Locate notes where facts are on the stream.
func (s *Store) Locate(ctx context.Context, db Executor, positions map[string]int64) error {
	ids, at := make([]string, 0, len(positions)), make([]int64, 0, len(positions))
	for id, position := range positions {
		ids, at = append(ids, id), append(at, position)
	}
	var b pgx.Batch
	b.Queue(`update facts f set stream_sequence = n.at from unnest($1::text[], $2::bigint[]) as n (id, at) where f.id = n.id`, ids, at)
	if err := db.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("note where %d facts are on the stream: %w", len(ids), err)
	}
	return nil
}

// Missing says whether an error is that there is no such fact.
func Missing(err error) bool { return errors.Is(err, ErrNoFact) }

// FirstSince is the position on the stream of the first fact that was recorded at a time or later; ErrNoFact when none was.
func (s *Store) FirstSince(ctx context.Context, db Querier, since time.Time) (int64, error) {
	var position *int64
	err := db.QueryRow(ctx, `select min(stream_sequence) from facts where stream_sequence > 0 and recorded_at >= $1`, since).Scan(&position)
	if err != nil {
		return 0, fmt.Errorf("look for the first fact since %s: %w", since, err)
	}
	if position == nil {
		return 0, ErrNoFact
	}
	return *position, nil
}
