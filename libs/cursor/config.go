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

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
)

// Restart says that a stream is read from the start.
type Restart struct {
	// Epoch that begins. 1 is the first reading ever.
	Epoch int64
	// Reason in a sentence, for the log and for whoever asks later.
	Reason string
}

// Config says which stream to take where. T is what a message means to the handler.
type Config[T any] struct {
	// Name of the consumer: the read model that the cursor belongs to. Required.
	Name string

	// Stream to read. Required.
	Stream string

	// Subjects to read, with wildcards: the partition. A consumer of another partition has another name. Defaults to all of the stream.
	Subjects []string

	// Pool of the database. Required.
	Pool *pgxpool.Pool

	// JetStream of a connection that comes back by itself. Required.
	JetStream jetstream.JetStream

	// Logger. Required.
	Logger *slog.Logger

	// Cell and Service name the subjects on DEAD. Required.
	Cell    topology.Cell
	Service string

	// Decode reads a message into its Value. It runs beside the transaction of the batch before. An error puts the message on DEAD.
	// Required.
	Decode func(m *Message[T]) error

	// Handle writes what the messages say, in the transaction that moves the cursor; it is called again, in a new
	// transaction, after any error. Messages are in the stream's order. A *Poison, or Poisons, names messages that can never be handled.
	// It keeps no reference to the batch. Required.
	Handle func(ctx context.Context, tx pgx.Tx, batch []Message[T]) error

	// Restarted is called in the transaction that begins an epoch, before its first message, the very first epoch included: the place
	// to ask for full resyncs. An error repeats it. Defaults to nothing.
	Restarted func(ctx context.Context, tx pgx.Tx, r Restart) error

	// Batch is how many messages one transaction takes at most. Defaults to 1000.
	Batch int

	// BatchBytes bounds the messages of a batch together; a single larger one is a batch of its own. Defaults to 16 MiB.
	BatchBytes int

	// Linger is how long a batch that is not full waits for the next message when the stream has more already. For those yet to come it never waits: they go with
	// the next one, and the busier the stream, the more do. Defaults to 2 ms.
	Linger time.Duration

	// Retry bounds the pauses after failures. Defaults to 50 ms and 5 s.
	Retry retry.Policy

	// LockInterval is how often a replica that waits asks for the lock. Defaults to 500 ms.
	LockInterval time.Duration

	// StaleAfter is how long a failure lasts before Check complains. Defaults to 10 s.
	StaleAfter time.Duration

	// Metrics to write to. Defaults to none.
	Metrics *Metrics
}

func (c Config[T]) withDefaults() Config[T] {
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
	var faults []error
	for _, required := range []struct {
		what    string
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
			faults = append(faults, errors.New("no "+required.what))
		}
	}
	if c.Batch < 0 || c.BatchBytes < 0 {
		faults = append(faults, errors.New("negative batch"))
	}
	if len(faults) > 0 {
		return fmt.Errorf("configure the consumer %s of stream %s: %w", c.Name, c.Stream, errors.Join(faults...))
	}
	return nil
}

func (c Config[T]) key() cursorKey { return cursorKey{consumer: c.Name, stream: c.Stream} }

func (c Config[T]) lock() postgres.Lock {
	return postgres.Lock{Name: "cursor/" + c.Name + "/" + c.Stream, Interval: c.LockInterval}
}
