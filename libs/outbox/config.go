package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/internal/delay"
	"lockstep.internal/libs/postgres"
)

// Restoration is what was found to be older than it was.
type Restoration struct {
	// Stream that ends before what it has acknowledged. Empty when it is the database that is older than the streams.
	Stream string
	// Reason in a sentence, for the log and for whoever asks later.
	Reason string
}

// Config says what to publish, and where.
type Config struct {
	// Pool of the database with the outbox. Required.
	Pool *pgxpool.Pool

	// Conn is the connection to NATS, which comes back by itself. Required.
	Conn *nats.Conn

	// Logger. Required.
	Logger *slog.Logger

	// Restored is called when a stream or the database turns out to be restored from an older copy, in the transaction that takes note of it: an
	// error rolls back and the call is repeated. It inserts the messages whose loss would matter again, since the stream
	// may lack some, or the other way round speak of what the database no longer knows. Defaults to logging only.
	Restored func(ctx context.Context, tx pgx.Tx, r Restoration) error

	// Batch is how many rows are taken at once. Defaults to 1000.
	Batch int

	// BatchBytes bounds the data of the rows taken at once. Defaults to 16 MiB.
	BatchBytes int64

	// Interval is how long a message may wait when its notification was lost. Defaults to 1 s.
	Interval time.Duration

	// AckTimeout is how long JetStream may take to acknowledge. Defaults to 5 s.
	AckTimeout time.Duration

	// RetryMin and RetryMax bound the pauses after failures. Default to 50 ms and 5 s.
	RetryMin, RetryMax time.Duration

	// LockInterval is how often a replica that waits asks for the lock. Defaults to 500 ms.
	LockInterval time.Duration

	// StaleAfter is the age of the oldest waiting message from which on Check complains. Defaults to 30 s.
	StaleAfter time.Duration

	// Metrics to write to. Defaults to none.
	Metrics *Metrics
}

func (c Config) withDefaults() Config {
	if c.Restored == nil {
		c.Restored = func(context.Context, pgx.Tx, Restoration) error { return nil }
	}
	if c.Batch == 0 {
		c.Batch = 1000
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 16 << 20
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = 5 * time.Second
	}
	if c.StaleAfter == 0 {
		c.StaleAfter = 30 * time.Second
	}
	if c.Metrics == nil {
		c.Metrics = newMetrics()
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	if c.Pool == nil {
		faults = append(faults, errors.New("no database pool"))
	}
	if c.Conn == nil {
		faults = append(faults, errors.New("no NATS connection"))
	}
	if c.Logger == nil {
		faults = append(faults, errors.New("no logger"))
	}
	if c.Batch < 0 || c.BatchBytes < 0 {
		faults = append(faults, errors.New("negative batch"))
	}
	if len(faults) > 0 {
		return fmt.Errorf("configure the outbox's publisher: %w", errors.Join(faults...))
	}
	return nil
}

func (c Config) retry() delay.Range {
	r := delay.Range{Min: c.RetryMin, Max: c.RetryMax}
	return r.Or(delay.Range{Min: 50 * time.Millisecond, Max: 5 * time.Second})
}

func (c Config) lock() postgres.Lock { return postgres.Lock{Name: "outbox", Interval: c.LockInterval} }
