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
	serviceName      = "state"
)

// Readers makes the consumers of OBSERVED and APPLIED. Fields without a default are required.
type Readers struct {
	Pool         *pgxpool.Pool
	JetStream    jetstream.JetStream
	Cell         topology.Cell
	Logger       *slog.Logger
	Ingest       *ingest.Ingest
	Observations *postgres.Observations
	// Batch limits the messages of one transaction. Defaults to the cursor's default.
	Batch int
	// Cursors are the metrics of the consumers. Defaults to none.
	Cursors *cursor.Metrics
}

// Parts returns the consumers as parts of a service with the parts "database" and "streams".
func (r *Readers) Parts() ([]service.Part, error) {
	observed, err := r.Observed()
	if err != nil {
		return nil, err
	}
	applied, err := r.Applied()
	if err != nil {
		return nil, err
	}
	return []service.Part{part(ObservedConsumer, observed), part(AppliedConsumer, applied)}, nil
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
func (r *Readers) Observed() (*cursor.Consumer[ingest.Observed], error) {
	cfg := config[ingest.Observed](r, ObservedConsumer, topology.StreamObserved)
	cfg.Decode = func(m *cursor.Message[ingest.Observed]) error {
		var err error
		m.Value, err = ingest.DecodeObserved(r.Cell, m.Subject, m.Header, m.Data)
		m.Value.Sequence, m.Value.Stored = m.Sequence, m.Stored
		return err
	}
	cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[ingest.Observed]) error {
		messages := make([]*ingest.Observed, 0, len(batch))
		for i := range batch {
			if !batch[i].Value.Ignored {
				messages = append(messages, &batch[i].Value)
			}
		}
		if len(messages) == 0 {
			return nil
		}
		return deadLetter(r.Ingest.Observed(ctx, r.Observations.In(tx), messages))
	}
	cfg.Restarted = func(ctx context.Context, tx pgx.Tx, _ cursor.Restart) error {
		// Only the clusters know what the restored stream lacks.
		return r.Observations.In(tx).RequestAllResyncs(ctx, events.ResyncRequestCauseRestoredStream, time.Now())
	}
	return cursor.New(cfg)
}

// Applied returns the consumer of APPLIED.
func (r *Readers) Applied() (*cursor.Consumer[ingest.Applied], error) {
	cfg := config[ingest.Applied](r, AppliedConsumer, topology.StreamApplied)
	cfg.Decode = func(m *cursor.Message[ingest.Applied]) error {
		var err error
		m.Value, err = ingest.DecodeApplied(r.Cell, m.Subject, m.Header, m.Data)
		m.Value.Sequence = m.Sequence
		return err
	}
	cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[ingest.Applied]) error {
		messages := make([]*ingest.Applied, len(batch))
		for i := range batch {
			messages[i] = &batch[i].Value
		}
		return deadLetter(r.Ingest.Applied(ctx, r.Observations.In(tx), messages))
	}
	return cursor.New(cfg)
}

func config[T any](r *Readers, name, stream string) cursor.Config[T] {
	return cursor.Config[T]{
		Name:      name,
		Stream:    stream,
		Pool:      r.Pool,
		JetStream: r.JetStream,
		Logger:    r.Logger,
		Cell:      r.Cell,
		Service:   serviceName,
		Metrics:   r.Cursors,
		Batch:     r.Batch,
	}
}

// deadLetter turns a rejected message into the error that sends it to DEAD.
func deadLetter(err error) error {
	if rejected, is := errors.AsType[*ingest.Rejected](err); is {
		return &cursor.DeadLetterError{Sequence: rejected.Sequence, Err: rejected.Err}
	}
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}
