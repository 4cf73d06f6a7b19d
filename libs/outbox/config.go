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

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
)

// Restoration describes a stream or a database that was restored from an older copy.
type Restoration struct {
	// Stream is the restored stream. Empty when the database was restored.
	Stream string
	// Reason is a sentence for the log.
	Reason string
}

// Config configures a [Publisher].
type Config struct {
	// Pool of the database with the outbox. Required.
	Pool *pgxpool.Pool

	// Conn is a connection to NATS that reconnects for ever. Required.
	Conn *nats.Conn

	// Logger. Required.
	Logger *slog.Logger

	// Restored is called when a stream or the database was restored from an older copy. It inserts the current state
	// again, because stream and database may differ. It may lock entities, in the order of all transactions. It runs in
	// the transaction that ends the restoration; an error rolls back and the call is repeated. Defaults to logging only.
	Restored func(ctx context.Context, tx pgx.Tx, r Restoration) error

	// OrderingKey is a regular expression of PostgreSQL. Messages whose subjects have the same match, or the same first
	// group of it, are published in the order of their insertion, one after another. A subject without a match has an
	// order of its own. Defaults to an order for each subject.
	OrderingKey string

	// StreamOf returns the stream of a subject. Defaults to asking the server for it, which needs the right to publish to
	// $JS.API.STREAM.NAMES.
	StreamOf func(subject string) string

	// Batch is the maximum number of rows read at once. Defaults to 1000.
	Batch int
	// BatchBytes bounds the data of the rows read at once. Defaults to 16 MiB.
	BatchBytes int64
	// Interval is the maximum delay of a message after a lost notification. Defaults to 1 s.
	Interval time.Duration
	// AckTimeout is how long to wait for an acknowledgement of JetStream. Defaults to 3 s.
	AckTimeout time.Duration
	// Retry sets the minimum and maximum back-off. Defaults to 50 ms and 1 s.
	Retry retry.Policy
	// LockInterval is the time between two attempts of a waiting replica to get the lock.
	// Defaults to 500 ms.
	LockInterval time.Duration
	// StaleAfter is the age of the oldest message at which Check fails. Defaults to 30 s.
	StaleAfter time.Duration
	// Metrics to update. Optional.
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
		c.AckTimeout = 3 * time.Second
	}
	c.Retry = c.Retry.OrDefault(retry.Policy{Min: 50 * time.Millisecond, Max: time.Second})
	if c.StaleAfter == 0 {
		c.StaleAfter = 30 * time.Second
	}
	if c.Metrics == nil {
		c.Metrics = newMetrics()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Pool == nil {
		errs = append(errs, errors.New("no database pool"))
	}
	if c.Conn == nil {
		errs = append(errs, errors.New("no NATS connection"))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	if c.Batch < 0 || c.BatchBytes < 0 {
		errs = append(errs, errors.New("negative batch"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("outbox publisher: %w", errors.Join(errs...))
	}
	return nil
}

func (c Config) lock() postgres.Lock { return postgres.Lock{Name: "outbox", Interval: c.LockInterval} }
