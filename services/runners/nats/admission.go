package nats

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/schedule"
)

// AdmissionReader reads the stream ADMISSION. All fields but Metrics are required.
type AdmissionReader struct {
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	// Consumers creates the consumer on the server.
	Consumers cursor.Consumers
	Cell      topology.Cell
	Scheduler *schedule.Scheduler
	Logger    *slog.Logger
	Metrics   *cursor.Metrics
}

// decisionBatch is the maximum number of events in a transaction, which keeps the pipelines of their jobs locked.
const decisionBatch = 100

// Open returns the consumer. It stores prerequisites and applies decisions in the transaction that moves its cursor.
func (a AdmissionReader) Open() (*cursor.Consumer[publish.Admission], error) {
	consumer, err := cursor.New(cursor.Config[publish.Admission]{
		Name: "admission", Stream: topology.StreamAdmission, Pool: a.Pool, JetStream: a.JetStream, Consumers: a.Consumers,
		Logger: a.Logger, Cell: a.Cell, Service: natsauth.PrincipalRunners, Metrics: a.Metrics, Batch: decisionBatch,
		Decode: func(m *cursor.Message[publish.Admission]) (err error) {
			m.Value, err = publish.DecodeAdmission(a.Cell, m.Subject, m.Header, m.Data)
			return err
		},
		Handle: a.handle,
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", topology.StreamAdmission, err)
	}
	return consumer, nil
}

func (a AdmissionReader) handle(ctx context.Context, tx pgx.Tx, batch []cursor.Message[publish.Admission]) error {
	for i := range batch {
		m := &batch[i].Value
		if err := postgres.PutPrerequisites(ctx, tx, m.JobID, m.Preparation, m.Prerequisites...); err != nil {
			return err
		}
		if m.Decision == nil {
			continue
		}
		if err := a.Scheduler.Decide(ctx, tx, m.JobID, *m.Decision); err != nil {
			return fmt.Errorf("apply the decision about job %d: %w", m.JobID, err)
		}
	}
	return nil
}
