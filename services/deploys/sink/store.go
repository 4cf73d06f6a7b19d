package sink

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the tables of the sinks.
func Migrations() (postgres.Migrations, error) {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return postgres.Migrations{}, fmt.Errorf("open the migrations of the sinks: %w", err)
	}
	return postgres.Migrations{Name: "sink", FS: dir}, nil
}

// Outcomes of a delivery.
const (
	outcomeDelivered   = "delivered"
	outcomeCombined    = "combined"
	outcomeDead        = "dead"
	outcomeKnown       = "known"        // finished before; not recorded
	outcomeNotSelected = "not_selected" // by the filter or the sink; not recorded
)

const (
	storeTimeout     = 30 * time.Second
	deliveriesMaxAge = 7 * 24 * time.Hour
	threadsMaxAge    = 400 * 24 * time.Hour
	maxThread        = 256 // bytes
	maxPrunedRows    = 10_000
)

// store stores positions, deliveries and threads in PostgreSQL. It uses the connection that holds the lock, so a
// replica that has lost the lock cannot write.
type store struct {
	lost func(error) // called when the connection is closed

	mu   sync.Mutex
	conn *pgx.Conn
}

// do runs a function with the connection, one at a time. The end of ctx does not interrupt it, because pgx would close
// the connection.
func (s *store) do(ctx context.Context, action string, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err := fn(ctx, s.conn)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", action, err)
	if s.conn.IsClosed() {
		s.lost(err)
	}
	return err
}

// next returns the stored position of a sink. If there is none, it stores and returns first.
func (s *store) next(ctx context.Context, sink string, first uint64) (uint64, error) {
	var next int64
	err := s.do(ctx, "read the position of sink "+sink, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO sinks (name, next_sequence) VALUES ($1, $2) ON CONFLICT DO NOTHING`,
			sink, int64(first))
		if err != nil {
			return err //nolint:wrapcheck // Wrapped by do.
		}
		return conn.QueryRow(ctx, `SELECT next_sequence FROM sinks WHERE name = $1`, sink).Scan(&next)
	})
	return uint64(next), err
}

// savePosition stores the position of a sink, in case NATS loses its consumer, and its last error.
func (s *store) savePosition(ctx context.Context, sink string, next uint64, lastError string) error {
	return s.do(ctx, "save the position of sink "+sink, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			UPDATE sinks SET next_sequence = $2, trouble = $3,
				trouble_since = CASE WHEN $3 = '' THEN NULL ELSE coalesce(trouble_since, now()) END
			WHERE name = $1`, sink, int64(next), deadletter.HeaderText(lastError))
		return err //nolint:wrapcheck // Wrapped by do.
	})
}

// finished returns the keys that the sink has finished.
func (s *store) finished(ctx context.Context, sink string, keys []string) (map[string]bool, error) {
	finished := map[string]bool{}
	err := s.do(ctx, "read the deliveries of sink "+sink, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT key FROM sink_deliveries WHERE sink = $1 AND key = ANY ($2)`, sink, keys)
		if err != nil {
			return err //nolint:wrapcheck // Wrapped by do.
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, key := range found {
			finished[key] = true
		}
		return err //nolint:wrapcheck // Wrapped by do.
	})
	return finished, err
}

// delivery is a row of sink_deliveries.
type delivery struct {
	key      string
	sequence uint64
	outcome  string
}

// record stores deliveries. A key that is recorded again gets the new outcome.
func (s *store) record(ctx context.Context, sink string, deliveries []delivery) error {
	keys, sequences, outcomes := []string{}, []int64{}, []string{}
	seen := map[string]bool{}
	for _, d := range deliveries {
		if !seen[d.key] {
			seen[d.key] = true
			keys, outcomes = append(keys, d.key), append(outcomes, d.outcome)
			sequences = append(sequences, int64(d.sequence))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return s.do(ctx, "record deliveries of sink "+sink, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			INSERT INTO sink_deliveries (sink, key, sequence, outcome)
			SELECT $1, u.key, u.sequence, u.outcome
			FROM unnest($2::text[], $3::bigint[], $4::text[]) AS u (key, sequence, outcome)
			ON CONFLICT (sink, key) DO UPDATE SET outcome = excluded.outcome, at = now()`, sink, keys, sequences, outcomes)
		return err //nolint:wrapcheck // Wrapped by do.
	})
}

// prune deletes old deliveries and threads, up to maxPrunedRows of each.
func (s *store) prune(ctx context.Context) error {
	return s.do(ctx, "delete old deliveries", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			DELETE FROM sink_deliveries WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM sink_deliveries WHERE at < now() - $1::interval LIMIT $2))`,
			deliveriesMaxAge, maxPrunedRows)
		if err != nil {
			return err //nolint:wrapcheck // Wrapped by do.
		}
		_, err = conn.Exec(ctx, `
			DELETE FROM sink_threads WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM sink_threads WHERE updated_at < now() - $1::interval LIMIT $2))`,
			threadsMaxAge, maxPrunedRows)
		return err //nolint:wrapcheck // Wrapped by do.
	})
}

// threads implements [Threads] for one sink.
type threads struct {
	store *store
	sink  string
}

// threadKey returns a key that is short enough for an index.
func threadKey(thread string) string {
	if len(thread) <= maxThread {
		return thread
	}
	digest := sha256.Sum256([]byte(thread))
	return "sha256:" + hex.EncodeToString(digest[:])
}

// Get implements Threads.
func (t threads) Get(ctx context.Context, thread string) (json.RawMessage, bool, error) {
	var value []byte
	found := true
	err := t.store.do(ctx, "read a thread of sink "+t.sink, func(ctx context.Context, conn *pgx.Conn) error {
		row := conn.QueryRow(ctx, `SELECT value FROM sink_threads WHERE sink = $1 AND thread = $2`, t.sink, threadKey(thread))
		err := row.Scan(&value)
		if errors.Is(err, pgx.ErrNoRows) {
			found = false
			return nil
		}
		return err //nolint:wrapcheck // Wrapped by do.
	})
	return value, found && err == nil, err
}

// Claim implements Threads.
func (t threads) Claim(ctx context.Context, thread string, value json.RawMessage) (bool, error) {
	claimed := false
	err := t.store.do(ctx, "claim a thread of sink "+t.sink, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `
			INSERT INTO sink_threads (sink, thread, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
			t.sink, threadKey(thread), []byte(value))
		claimed = err == nil && tag.RowsAffected() == 1
		return err //nolint:wrapcheck // Wrapped by do.
	})
	return claimed, err
}

// Put implements Threads.
func (t threads) Put(ctx context.Context, thread string, value json.RawMessage) error {
	return t.store.do(ctx, "write a thread of sink "+t.sink, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			INSERT INTO sink_threads (sink, thread, value) VALUES ($1, $2, $3)
			ON CONFLICT (sink, thread) DO UPDATE SET value = excluded.value, updated_at = now()`,
			t.sink, threadKey(thread), []byte(value))
		return err //nolint:wrapcheck // Wrapped by do.
	})
}
