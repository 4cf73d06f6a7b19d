package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
)

// Names of the consumers. Their cursors are stored under these names.
const (
	ObservedConsumer = "observed"
	AppliedConsumer  = "applied"
	ActivityConsumer = "activity"
	serviceName      = "state"

	// observedBatchBytes limits the data in a batch of OBSERVED. Decoded and encoded again, it takes several times as
	// much memory.
	observedBatchBytes = 2 << 20
)

// Consumers creates the cursor consumers of OBSERVED, APPLIED and ACTIVITY. Fields without a default are required.
type Consumers struct {
	Pool         *pgxpool.Pool
	JetStream    jetstream.JetStream
	Cell         topology.Cell
	Logger       *slog.Logger
	Ingest       *ingest.Ingest
	IngestStores *postgres.IngestStores
	// Batch limits the messages of one transaction. Defaults to the cursor's default.
	Batch int
	// CursorMetrics of the consumers. Defaults to none.
	CursorMetrics *cursor.Metrics
}

// Parts returns the consumers as parts of the service. They start after the parts "database" and "streams".
func (c *Consumers) Parts() ([]service.Part, error) {
	observed, err := c.Observed()
	if err != nil {
		return nil, err
	}
	applied, err := c.Applied()
	if err != nil {
		return nil, err
	}
	activity, err := c.Activity()
	if err != nil {
		return nil, err
	}
	return []service.Part{
		part(ObservedConsumer, observed), part(AppliedConsumer, applied), part(ActivityConsumer, activity),
	}, nil
}

func part[T any](name string, consumer *cursor.Consumer[T]) service.Part {
	return service.Part{
		Name: "ingest-" + name, StartAfter: []string{"database", "streams"}, Check: consumer.Check,
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return consumer.Run(ctx)
		},
	}
}

// Observed returns the consumer of OBSERVED.
func (c *Consumers) Observed() (*cursor.Consumer[[]ingest.Observed], error) {
	cfg := config[[]ingest.Observed](c, ObservedConsumer, topology.StreamObserved)
	cfg.Decode = func(m *cursor.Message[[]ingest.Observed]) error {
		var err error
		m.Value, err = ingest.DecodeObserved(c.Cell, m.Subject, m.Header, m.Data)
		for i := range m.Value {
			m.Value[i].StoredIn(m.Sequence, m.Stored)
		}
		if err != nil && len(m.Value) > 0 {
			return &cursor.PartlyMalformedError{Err: err}
		}
		return err
	}
	cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[[]ingest.Observed]) error {
		messages := make([]*ingest.Observed, 0, len(batch))
		for i := range batch {
			for n := range batch[i].Value {
				messages = append(messages, &batch[i].Value[n])
			}
		}
		if len(messages) == 0 {
			return nil
		}
		return asDeadLetter(c.Ingest.HandleObserved(ctx, c.IngestStores.In(tx), messages))
	}
	cfg.Restarted = func(ctx context.Context, tx pgx.Tx, _ cursor.Restart) error {
		// Messages missing in the restored stream can only be recovered by a full resync of each cluster.
		store := c.IngestStores.In(tx)
		return c.Ingest.RequestAllResyncs(ctx, store, events.ResyncRequestCauseRestoredStream, time.Now())
	}
	cfg.Committed = c.reportRead
	// A message may have a thousand members of a full resync: this limits the transaction.
	cfg.BatchBytes = observedBatchBytes
	return cursor.New(cfg)
}

// ObservedSequence returns the sequence up to which OBSERVED is processed.
func (c *Consumers) ObservedSequence(ctx context.Context) (uint64, error) {
	consumer, err := c.Observed()
	if err != nil {
		return 0, err
	}
	return sequence(ctx, c.Pool, consumer)
}

// ActivitySequence returns the sequence up to which ACTIVITY is processed.
func (c *Consumers) ActivitySequence(ctx context.Context) (uint64, error) {
	consumer, err := c.Activity()
	if err != nil {
		return 0, err
	}
	return sequence(ctx, c.Pool, consumer)
}

func sequence[T any](ctx context.Context, pool *pgxpool.Pool, consumer *cursor.Consumer[T]) (uint64, error) {
	var position cursor.Position
	err := libpostgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		var err error
		position, err = consumer.Position(ctx, tx)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ingest: %w", err)
	}
	return position.Sequence, nil
}

// reportRead reports the committed sequence of OBSERVED to each agent of the batch that asks for it by
// [topology.HeaderReportRead]. It does not wait for the acknowledgement: the next report replaces a lost one.
func (c *Consumers) reportRead(ctx context.Context, sequence uint64, batch []cursor.Message[[]ingest.Observed]) {
	reported := map[int64]bool{}
	for i := range batch {
		if batch[i].Header.Get(topology.HeaderReportRead) == "" {
			continue
		}
		subject, err := topology.Parse(batch[i].Subject)
		if err != nil {
			continue // only a message for the deploys service: DecodeObserved rejects others with such a subject
		}
		agentID, err := subject.Agent()
		if err != nil || reported[agentID] {
			continue
		}
		reported[agentID] = true
		m, err := c.Ingest.Encoder.ObservationsRead(ctx, agentID, sequence, time.Now())
		if err == nil {
			err = c.JetStream.Conn().PublishMsg(m)
		}
		if err != nil {
			c.Logger.DebugContext(ctx, "publishing an observations-read event failed",
				slog.Int64(logkey.AgentID, agentID), logkey.Error(err))
		}
	}
}

// Applied returns the consumer of APPLIED.
func (c *Consumers) Applied() (*cursor.Consumer[ingest.Applied], error) {
	cfg := config[ingest.Applied](c, AppliedConsumer, topology.StreamApplied)
	cfg.Decode = func(m *cursor.Message[ingest.Applied]) error {
		var err error
		m.Value, err = ingest.DecodeApplied(c.Cell, m.Subject, m.Header, m.Data)
		m.Value.StoredIn(m.Sequence, m.Stored)
		return err
	}
	cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[ingest.Applied]) error {
		messages := make([]*ingest.Applied, len(batch))
		for i := range batch {
			messages[i] = &batch[i].Value
		}
		return asDeadLetter(c.Ingest.HandleApplied(ctx, c.IngestStores.In(tx), messages))
	}
	return cursor.New(cfg)
}

// Activity returns the consumer of ACTIVITY.
func (c *Consumers) Activity() (*cursor.Consumer[ingest.Activity], error) {
	cfg := config[ingest.Activity](c, ActivityConsumer, topology.StreamActivity)
	cfg.Decode = func(m *cursor.Message[ingest.Activity]) error {
		var err error
		m.Value, err = ingest.DecodeActivity(c.Cell, m.Subject, m.Header, m.Data)
		m.Value.StoredAt(m.Stored)
		return err
	}
	cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[ingest.Activity]) error {
		seen := make([]ingest.Activity, len(batch))
		for i := range batch {
			seen[i] = batch[i].Value
		}
		return ingest.HandleActivity(ctx, c.IngestStores.In(tx), seen)
	}
	return cursor.New(cfg)
}

func config[T any](c *Consumers, name, stream string) cursor.Config[T] {
	return cursor.Config[T]{
		Name:      name,
		Stream:    stream,
		Pool:      c.Pool,
		JetStream: c.JetStream,
		Logger:    c.Logger,
		Cell:      c.Cell,
		Service:   serviceName,
		Metrics:   c.CursorMetrics,
		Batch:     c.Batch,
	}
}

// asDeadLetter converts an ingest.UnprocessableError to a cursor.DeadLetterError.
func asDeadLetter(err error) error {
	if rejected, ok := errors.AsType[*ingest.UnprocessableError](err); ok {
		return &cursor.DeadLetterError{Sequence: rejected.Sequence, Err: rejected.Err}
	}
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}
