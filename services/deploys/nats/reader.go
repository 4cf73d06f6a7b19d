package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/metrics"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/publish"
)

const (
	// consumerName is the name of the cursor in the database.
	consumerName  = "workloads"
	serviceName   = "deploys"
	defaultCached = 50_000
	// defaultBatch is larger than the number of messages that wait while the reader keeps up.
	defaultBatch = 4000
	maxSpanLinks = 32
)

// Reader creates the consumers of OBSERVED. Fields are required unless they name a default.
type Reader struct {
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Cell      topology.Cell
	Logger    *slog.Logger
	Directory Directory
	// Consumers defaults to [cursor.Config]'s default.
	Consumers cursor.Consumers
	// DirectoryTimeout is how long an agent may be missing in the directory before its messages are dead-lettered.
	// Defaults to 15 s.
	DirectoryTimeout time.Duration
	Environments     environment.Rules
	History          history.Rules
	// Limits of each agent. Default to [agents.DefaultLimits].
	Limits agents.Rows
	// Batch is the maximum number of messages per transaction. Defaults to 4,000.
	Batch int
	// Cached is the maximum number of workloads kept in memory. Defaults to 50,000.
	Cached int
	// Publisher defaults to one that publishes on DEPLOYS.
	Publisher ingest.Publisher
	// Tracer, Cursors and Metrics default to none.
	Tracer  trace.Tracer
	Cursors *cursor.Metrics
	Metrics *metrics.Metrics
}

// Consumer is a consumer of OBSERVED.
type Consumer = cursor.Consumer[observation.Observation]

// NewPublisher returns the publisher of facts on DEPLOYS.
func (r *Reader) NewPublisher() *publish.Publisher {
	stream := &Stream{JetStream: r.JetStream, Cell: r.Cell, Metrics: r.Metrics}
	return &publish.Publisher{Stream: stream, Logger: r.Logger, Metrics: r.Metrics}
}

// Consumer returns the consumer of new messages. It publishes facts.
func (r *Reader) Consumer() (*Consumer, error) {
	publisher := r.Publisher
	if publisher == nil {
		publisher = r.NewPublisher()
	}
	timeout := r.DirectoryTimeout
	if timeout == 0 {
		timeout = defaultDirectoryTimeout
	}
	projects := &agentProjects{directory: r.Directory, timeout: timeout, unknownSince: map[int64]time.Time{}}
	return r.consumer(&postgres.Store{}, ingest.New(ingest.Config{
		Logger: r.Logger, Projects: projects.project, Publisher: publisher, Environments: r.Environments, History: r.History,
		Limits: r.Limits, CachedRecords: r.cached(), Metrics: r.Metrics,
	}))
}

// RebuildConsumer returns a consumer that reads old messages again, and its processor. It applies the stored claims and
// publishes nothing.
func (r *Reader) RebuildConsumer() (*Consumer, *ingest.Processor, error) {
	processor := ingest.New(ingest.Config{
		Logger: slog.New(slog.DiscardHandler), Mode: ownership.Replay, Environments: r.Environments, History: r.History,
		Limits: r.Limits, CachedRecords: r.cached(),
	})
	quiet := *r
	quiet.Logger, quiet.Tracer, quiet.Cursors, quiet.Metrics = slog.New(slog.DiscardHandler), nil, nil, nil
	consumer, err := quiet.consumer(&postgres.Store{Silent: true}, processor)
	return consumer, processor, err
}

func (r *Reader) cached() int {
	if r.Cached == 0 {
		return defaultCached
	}
	return r.Cached
}

func (r *Reader) consumer(store *postgres.Store, processor *ingest.Processor) (*Consumer, error) {
	batch := r.Batch
	if batch == 0 {
		batch = defaultBatch
	}
	decoder := observation.NewDecoder(r.Cell)
	// The consumer has no filter: with several filters, the server searches all subjects for each message.
	c, err := cursor.New(cursor.Config[observation.Observation]{
		Name: consumerName, Stream: topology.StreamObserved, Pool: r.Pool, JetStream: r.JetStream, Logger: r.Logger,
		Consumers: r.Consumers, Cell: r.Cell, Service: serviceName, Metrics: r.Cursors, Batch: batch,
		Decode: func(m *cursor.Message[observation.Observation]) (err error) {
			m.Value, err = decoder.Decode(m.Subject, m.Header, m.Data)
			m.Value.StoredAt(m.Stored)
			return err
		},
		Handle: func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[observation.Observation]) error {
			ctx, span := r.startSpan(ctx, batch)
			defer span.End()
			messages := make([]ingest.Message, len(batch))
			for i := range batch {
				messages[i] = ingest.Message{Sequence: batch[i].Sequence, Observation: &batch[i].Value}
			}
			_, err := processor.Process(ctx, store.NewBatch(tx), messages)
			return deadLetters(err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", topology.StreamObserved, err)
	}
	return c, nil
}

// deadLetters converts rejections to errors that dead-letter the messages.
func deadLetters(err error) error {
	rejected, isRejected := errors.AsType[ingest.RejectedError](err)
	if !isRejected {
		return err
	}
	dead := make(cursor.DeadLetterErrors, len(rejected))
	for i, rejection := range rejected {
		dead[i] = &cursor.DeadLetterError{Sequence: rejection.Sequence, Err: rejection.Err}
	}
	return dead
}

// Part returns the consumer as a part of a service with the parts "database" and "streams".
func Part(c *Consumer) service.Part {
	return service.Part{
		Name: "ingest", StartAfter: []string{"database", "streams"}, Check: c.Check,
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return c.Run(ctx)
		},
	}
}

// startSpan starts the span of a batch, with links to the spans in which its messages were published.
func (r *Reader) startSpan(
	ctx context.Context, batch []cursor.Message[observation.Observation],
) (context.Context, trace.Span) {
	if r.Tracer == nil {
		return ctx, noop.Span{}
	}
	var links []trace.Link
	linked := map[string]struct{}{}
	for m := range batch {
		parent := batch[m].Value.TraceParent
		if _, done := linked[parent]; done || parent == "" {
			continue
		}
		if linked[parent] = struct{}{}; len(linked) > maxSpanLinks {
			break
		}
		cause := telemetry.Extract(context.Background(), nats.Header{event.TraceParent: []string{parent}})
		links = append(links, trace.Link{SpanContext: trace.SpanContextFromContext(cause)})
	}
	//nolint:spancheck // the caller ends it
	return r.Tracer.Start(ctx, "process observations", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...), trace.WithAttributes(attribute.Int("messages", len(batch))))
}
