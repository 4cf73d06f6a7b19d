package cursor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
)

// Restart describes why the consumer reads the stream from its start.
type Restart struct {
	// Epoch is the number of the new epoch. 1 is the first read of the stream.
	Epoch int64
	// Reason is a sentence for the log.
	Reason string
}

// Config configures a [Consumer]. T is the decoded form of a message.
type Config[T any] struct {
	// Name of the consumer, the key of its cursor. Required.
	Name string
	// Stream to read. Required.
	Stream string
	// Subjects to read, with wildcards. Consumers of different subjects need different names.
	// Defaults to all subjects.
	Subjects []string
	// Pool of the database. Required.
	Pool *pgxpool.Pool
	// JetStream with a connection that reconnects forever. Required.
	JetStream jetstream.JetStream
	// Consumers creates the consumer on the server. Defaults to [consumers.Direct], which only the state service may use.
	Consumers Consumers
	// Logger. Required.
	Logger *slog.Logger
	// Cell and Service name the subjects on DEAD. Required.
	Cell    topology.Cell
	Service string
	// Decode sets the message's Value. It runs concurrently with the transaction of the previous
	// batch. An error moves the message to DEAD; after a *PartlyMalformedError the Value is handled, too. Required.
	Decode func(m *Message[T]) error
	// Handle writes the effects of the batch, in stream order, in the transaction that moves the cursor. After any
	// error it is called again in a new transaction, after a data error of the database with a part of the batch. A
	// *DeadLetterError or DeadLetterErrors names messages that can never be handled. Handle must not keep a reference to
	// the batch. Required.
	Handle func(ctx context.Context, tx pgx.Tx, batch []Message[T]) error
	// Committed is called after each commit with the sequence up to which the stream is now handled, and the batch. It
	// must not block. Optional.
	Committed func(ctx context.Context, sequence uint64, batch []Message[T])
	// Restarted is called in the transaction that begins an epoch, including the first. Use it to request full
	// resyncs. If it fails, the transaction is retried. Optional.
	Restarted func(ctx context.Context, tx pgx.Tx, r Restart) error
	// Batch is the maximum number of messages in a transaction. Defaults to 1000.
	Batch int
	// BatchBytes limits the size of a batch in bytes. A larger message forms its own batch. Defaults to 16 MiB.
	BatchBytes int
	// Linger is the time that a partial batch waits for messages that the stream already holds.
	// Defaults to 2 ms.
	Linger time.Duration
	// Retry sets the minimum and maximum back-off. Defaults to 50 ms and 5 s.
	Retry retry.Policy
	// LockInterval is the time between two attempts of a waiting replica to get the lock. Defaults
	// to 500 ms.
	LockInterval time.Duration
	// StaleAfter is how long a failure must last before Check fails. Defaults to 10 s.
	StaleAfter time.Duration
	// Metrics to update. Optional.
	Metrics *Metrics
}

// Consumers creates the consumer of a reader on the server.
type Consumers interface {
	// Reader creates an ephemeral consumer.
	Reader(ctx context.Context, r topology.ReaderConsumer) (jetstream.Consumer, error)
	// EndsAtEmptyMessage reports whether the server drops the messages of a pull request that follow one without payload
	// and headers, as it does across accounts.
	EndsAtEmptyMessage() bool
}

func (c Config[T]) withDefaults() Config[T] {
	if c.Consumers == nil {
		c.Consumers = consumers.Direct{JetStream: c.JetStream, Cell: c.Cell, Service: c.Service}
	}
	if c.Committed == nil {
		c.Committed = func(context.Context, uint64, []Message[T]) {}
	}
	if c.Restarted == nil {
		c.Restarted = func(context.Context, pgx.Tx, Restart) error { return nil }
	}
	if c.Batch == 0 {
		c.Batch = 1000
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 16 << 20
	}
	if c.Linger == 0 {
		c.Linger = 2 * time.Millisecond
	}
	c.Retry = c.Retry.OrDefault(retry.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second})
	if c.StaleAfter == 0 {
		c.StaleAfter = 10 * time.Second
	}
	if c.Metrics == nil {
		c.Metrics = newMetrics()
	}
	return c
}

func (c Config[T]) validate() error {
	var errs []error
	for _, required := range []struct {
		name    string
		missing bool
	}{
		{"name", c.Name == ""},
		{"stream", c.Stream == ""},
		{"database pool", c.Pool == nil},
		{"JetStream", c.JetStream == nil},
		{"logger", c.Logger == nil},
		{"cell", c.Cell == ""},
		{"service", c.Service == ""},
		{"decoder", c.Decode == nil},
		{"handler", c.Handle == nil},
	} {
		if required.missing {
			errs = append(errs, errors.New("no "+required.name))
		}
	}
	if c.Batch < 0 || c.BatchBytes < 0 {
		errs = append(errs, errors.New("negative batch"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("consumer %s of stream %s: %w", c.Name, c.Stream, errors.Join(errs...))
	}
	return nil
}

func (c Config[T]) key() cursorKey { return cursorKey{consumer: c.Name, stream: c.Stream} }

func (c Config[T]) lock() postgres.Lock {
	return postgres.Lock{Name: "cursor/" + c.Name + "/" + c.Stream, Interval: c.LockInterval}
}
