package nats

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/schedule"
)

// Publisher is what publishes the outbox to the streams JOBS and RUNNERS. All fields but Metrics are required.
type Publisher struct {
	Pool    *pgxpool.Pool
	Conn    *natsgo.Conn
	Encoder publish.Encoder
	Runners postgres.Runners
	// Scheduler prepares jobs again that wait for admission.
	Scheduler *schedule.Scheduler
	Logger    *slog.Logger
	Metrics   *outbox.Metrics
}

// Open returns the publisher. After a restoration of a stream or the database it publishes the last transition of every
// job and all runners again.
func (p Publisher) Open() (*outbox.Publisher, error) {
	publisher, err := outbox.New(outbox.Config{
		Pool: p.Pool, Conn: p.Conn, Logger: p.Logger, OrderingKey: publish.OrderingKey, Metrics: p.Metrics,
		StreamOf: p.streamOf,
		Restored: func(ctx context.Context, tx pgx.Tx, _ outbox.Restoration) error {
			if err := postgres.EachJob(ctx, tx, func(jobs []job.Job) error { return p.again(ctx, tx, jobs) }); err != nil {
				return err
			}
			return p.Runners.PublishAll(ctx, tx)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("publish events: %w", err)
	}
	return publisher, nil
}

func (p Publisher) streamOf(subject string) string {
	if strings.HasPrefix(subject, p.Encoder.Cell.Prefix(topology.FamilyRunner)+".") {
		return topology.StreamRunners
	}
	return topology.StreamJobs
}

// again publishes the last transitions of jobs again.
func (p Publisher) again(ctx context.Context, tx pgx.Tx, jobs []job.Job) error {
	changes := make([]job.Change, len(jobs))
	for i, j := range jobs {
		changes[i] = j.Last()
		if changes[i].Event != job.EventPreparing {
			continue
		}
		preparation, err := p.Scheduler.Preparation(ctx, tx, j)
		if err != nil {
			return err
		}
		changes[i].Preparation = &preparation
	}
	messages, err := p.Encoder.Changes(ctx, changes...)
	if err != nil {
		return err
	}
	return outbox.Insert(ctx, tx, messages...)
}
