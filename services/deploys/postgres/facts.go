package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/services/deploys/publish"
)

// Querier reads from a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Executor reads and writes through a pool, a connection or a transaction.
type Executor interface {
	Querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

const factColumns = `select id, workload, sequence, fact, rollout_id, occurred_at, observed_at, data, stream_sequence
	from facts where `

func scanFact(row pgx.CollectableRow) (Fact, error) {
	var f Fact
	err := row.Scan(&f.ID, &f.Workload, &f.Sequence, &f.Fact, &f.RolloutID, &f.OccurredAt, &f.ObservedAt, &f.Data,
		&f.StreamSequence)
	f.OccurredAt, f.ObservedAt = f.OccurredAt.UTC(), f.ObservedAt.UTC()
	return f, err //nolint:wrapcheck // the caller wraps it
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

func knownFacts(
	ctx context.Context, tx pgx.Tx, ids []string, workloads []uuid.UUID,
) (map[string]bool, map[uuid.UUID]int64, error) {
	known, newest := map[string]bool{}, map[uuid.UUID]int64{}
	var b pgx.Batch
	b.Queue(`select id from facts where id = any($1)`, ids).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, id := range found {
			known[id] = true
		}
		return err //nolint:wrapcheck // wrapped below
	})
	b.Queue(`select workload, max(sequence) from facts where workload = any($1) group by workload`, workloads).
		Query(func(rows pgx.Rows) error {
			var id uuid.UUID
			var sequence int64
			_, err := pgx.ForEachRow(rows, []any{&id, &sequence}, func() error {
				newest[id] = sequence
				return nil
			})
			return err //nolint:wrapcheck // wrapped below
		})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, nil, fmt.Errorf("find known facts: %w", err)
	}
	return known, newest, nil
}

// StoredFacts reads stored facts and their positions. It implements [publish.StoredFacts].
type StoredFacts struct {
	DB Executor
}

// Between implements [publish.Facts].
func (s StoredFacts) Between(
	ctx context.Context, workload uuid.UUID, above, below int64, maxAge time.Duration,
) ([]publish.Fact, error) {
	rows, err := (&Store{}).facts(ctx, s.DB, `workload = $1 and sequence > $2 and sequence < $3
		and ($4::bigint = 0 or recorded_at >= now() - $4 * interval '1 second') order by sequence`,
		workload, above, below, int64(maxAge.Seconds()))
	if err != nil {
		return nil, err
	}
	facts := make([]publish.Fact, len(rows))
	for i := range rows {
		facts[i].WorkloadID, facts[i].Position, facts[i].Known = rows[i].Workload, rows[i].StreamSequence, true
		if err := json.Unmarshal([]byte(rows[i].Data), &facts[i].DeployFact); err != nil {
			return nil, fmt.Errorf("decode fact %s: %w", rows[i].ID, err)
		}
	}
	return facts, nil
}

// PublishedUpTo implements [publish.StoredFacts].
func (s StoredFacts) PublishedUpTo(ctx context.Context, position int64) (id string, at int64, found bool, err error) {
	err = s.DB.QueryRow(ctx, `select id, stream_sequence from facts
		where stream_sequence > 0 and stream_sequence <= $1 order by stream_sequence desc limit 1`, position).Scan(&id, &at)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", 0, false, nil
	}
	if err != nil {
		return "", 0, false, fmt.Errorf("find the newest published fact: %w", err)
	}
	return id, at, true, nil
}

// ClearPositions implements [publish.StoredFacts].
func (s StoredFacts) ClearPositions(ctx context.Context, above int64) error {
	if _, err := s.DB.Exec(ctx, `update facts set stream_sequence = 0 where stream_sequence > $1`, above); err != nil {
		return fmt.Errorf("clear positions above %d: %w", above, err)
	}
	return nil
}

// WithoutPosition implements [publish.StoredFacts].
func (s StoredFacts) WithoutPosition(ctx context.Context, limit int) (map[uuid.UUID]int64, error) {
	rows, err := s.DB.Query(ctx,
		`select workload, min(sequence) from facts where stream_sequence = 0 group by workload limit $1`, limit)
	if err != nil {
		return nil, fmt.Errorf("find facts of unknown position: %w", err)
	}
	out := map[uuid.UUID]int64{}
	var id uuid.UUID
	var sequence int64
	_, err = pgx.ForEachRow(rows, []any{&id, &sequence}, func() error {
		out[id] = sequence
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find facts of unknown position: %w", err)
	}
	return out, nil
}

// SetPositions implements [publish.StoredFacts].
func (s StoredFacts) SetPositions(ctx context.Context, positions map[string]int64) error {
	if len(positions) == 0 {
		return nil
	}
	ids, at := make([]string, 0, len(positions)), make([]int64, 0, len(positions))
	for id, position := range positions {
		ids, at = append(ids, id), append(at, position)
	}
	_, err := s.DB.Exec(ctx, `update facts f set stream_sequence = n.at
		from unnest($1::text[], $2::bigint[]) as n (id, at) where f.id = n.id`, ids, at)
	if err != nil {
		return fmt.Errorf("store the positions of %d facts: %w", len(ids), err)
	}
	return nil
}

// Fact returns a fact by its id; [ErrNoFact] if there is none.
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

// Missing reports whether the error is [ErrNoFact].
func Missing(err error) bool { return errors.Is(err, ErrNoFact) }

// FirstSince returns the stream position of the first fact recorded at a time or later; [ErrNoFact] if there is none.
func (s *Store) FirstSince(ctx context.Context, db Querier, since time.Time) (int64, error) {
	var position *int64
	err := db.QueryRow(ctx, `select min(stream_sequence) from facts where stream_sequence > 0 and recorded_at >= $1`,
		since).Scan(&position)
	if err != nil {
		return 0, fmt.Errorf("find the first fact since %s: %w", since, err)
	}
	if position == nil {
		return 0, ErrNoFact
	}
	return *position, nil
}
