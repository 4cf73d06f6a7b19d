package nats

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/postgres"
)

const (
	// consumerName is what the cursor is kept by.
	consumerName = "workloads"
	serviceName  = "deploys"
	// defaultCached is how many states are kept in memory.
	defaultCached = 50_000
	// defaultBatch is much more than comes while nothing is behind.
	defaultBatch = 4000
)

// Ingest reads OBSERVED and tells facts on DEPLOYS. All fields that name no default are required.
type Ingest struct {
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Cell      topology.Cell
	Logger    *slog.Logger
	Store     *postgres.Store
	// Directory tells whose agents are.
	Directory Directory
	// Environments are the rules by which workloads make environments.
	Environments environment.Rules
	// History says how rows of the history are made.
	History history.Rules
	// Batch is how many messages one transaction takes at most. Defaults to 4,000: a workload's state and the rows of its rollouts are written once for all of them.
	Batch int
	// Cached is how many workloads' states are kept in memory. Defaults to 50,000.
	Cached int
	// Patience is how long the directory may take to tell of an agent that others can hear already. While it lasts nothing else is taken in. Defaults to 15 s.
	Patience time.Duration
	// Tracer of the spans. Defaults to none.
	Tracer trace.Tracer
	// Cursors are the metrics of the consumer, and Metrics those of what it finds. Both default to none.
	Cursors *cursor.Metrics
	Metrics *Metrics

	// silent tells nothing: for a rebuild.
	silent bool
	// restored is that positions are not those at which the stream was read first.
	restored bool
	known    *memory
	// strangers are agents that the directory does not know, and since when they are waited for.
	strangers map[int64]time.Time
	hooks     hooks
}

// hooks are points at which tests hold or end the reader.
type hooks struct {
	// concluded is called when it is known what a batch means, before anything is told.
	concluded func() error
	// published is called between the publishing of a batch's facts and the writing of the database.
	published func() error
}

// Observed is what a watcher says.
type Observed = observed.Observed

// Consumer is the consumer of the stream OBSERVED. It is made once.
func (i *Ingest) Consumer() (*cursor.Consumer[Observed], error) {
	if i.Cached == 0 {
		i.Cached = defaultCached
	}
	if i.Batch == 0 {
		i.Batch = defaultBatch
	}
	if i.Patience == 0 {
		i.Patience = defaultPatience
	}
	i.known, i.strangers = newMemory(i.Cached), map[int64]time.Time{}
	if i.hooks.concluded == nil {
		i.hooks.concluded = func() error { return nil }
	}
	if i.hooks.published == nil {
		i.hooks.published = func() error { return nil }
	}
	decoder := observed.NewDecoder(i.Cell)
	// The whole stream: of several filters the server looks at each subject that it has, for each message.
	c, err := cursor.New(cursor.Config[Observed]{
		Name: consumerName, Stream: topology.StreamObserved, Pool: i.Pool, JetStream: i.JetStream, Logger: i.Logger,
		Cell: i.Cell, Service: serviceName, Metrics: i.Cursors, Batch: i.Batch,
		Decode: func(m *cursor.Message[Observed]) error {
			value, err := decoder.Decode(m.Subject, m.Header, m.Data)
			m.Value = value
			return err
		},
		Handle: i.handle,
	})
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	return c, nil
}

// Part is the consumer as a part of a service that has parts "database" and "streams".
func Part(c *cursor.Consumer[Observed]) service.Part {
	return service.Part{
		Name: "ingest", StartAfter: []string{"database", "streams"}, Check: c.Check,
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return c.Run(ctx)
		},
	}
}

// handle takes in a batch, message by message in the stream's order: facts do not depend on where one batch ends and the next begins.
func (i *Ingest) handle(ctx context.Context, tx pgx.Tx, batch []cursor.Message[Observed]) error {
	ctx, span := i.trace(ctx, batch)
	defer span.End()
	in, err := i.begin(ctx, tx, batch)
	if err != nil {
		return err
	}
	for m := range batch {
		if err := in.take(ctx, &batch[m]); err != nil {
			return err
		}
	}
	if err := in.conclude(ctx); err != nil {
		return err
	}
	if err := i.hooks.concluded(); err != nil {
		return err
	}
	if err := in.tell(ctx); err != nil {
		return err
	}
	if err := i.hooks.published(); err != nil {
		return err
	}
	if err := in.store(ctx); err != nil {
		return err
	}
	in.remember()
	return nil
}
