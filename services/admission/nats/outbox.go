package nats

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/postgres"
	"lockstep.internal/services/admission/publish"
)

// republished is the age of decisions that are published again after a restoration. A job waits at most that long.
const republished = 25 * time.Hour

// NewPublisher returns the publisher of the outbox. After a restoration of the stream or the database it publishes
// recent decisions again: jobs may still wait for them.
func NewPublisher(
	pool *pgxpool.Pool, conn *natsgo.Conn, encoder publish.Encoder, logger *slog.Logger, metrics *outbox.Metrics,
	now func() time.Time,
) (*outbox.Publisher, error) {
	publisher, err := outbox.New(outbox.Config{
		Pool: pool, Conn: conn, Logger: logger, OrderingKey: publish.OrderingKey, Metrics: metrics,
		StreamOf: func(string) string { return topology.StreamAdmission },
		Restored: func(ctx context.Context, tx pgx.Tx, _ outbox.Restoration) error {
			return postgres.EachSince(ctx, tx, now().Add(-republished), func(jobs []decide.Job) error {
				var messages []*natsgo.Msg
				for _, j := range jobs {
					m, err := encoder.Decided(ctx, j)
					if err != nil {
						return err
					}
					if m != nil {
						messages = append(messages, m)
					}
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
