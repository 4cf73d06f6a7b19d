package nats

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
)

// NewPublisher returns the publisher of the outbox. After a restoration of the stream or the database it publishes the
// last transition of every job again.
func NewPublisher(
	pool *pgxpool.Pool, conn *natsgo.Conn, encoder publish.Encoder, logger *slog.Logger, metrics *outbox.Metrics,
) (*outbox.Publisher, error) {
	publisher, err := outbox.New(outbox.Config{
		Pool: pool, Conn: conn, Logger: logger, OrderingKey: publish.OrderingKey, Metrics: metrics,
		Stream: topology.StreamJobs,
		Restored: func(ctx context.Context, tx pgx.Tx, _ outbox.Restoration) error {
			return postgres.EachJob(ctx, tx, func(jobs []job.Job) error {
				changes := make([]job.Change, len(jobs))
				for i, j := range jobs {
					changes[i] = j.Last()
				}
				messages, err := encoder.Changes(ctx, changes...)
				if err != nil {
					return err
				}
				return outbox.Insert(ctx, tx, messages...)
			})
		},
	})
	if err != nil {
		return nil, fmt.Errorf("publish events: %w", err)
	}
	return publisher, nil
}
