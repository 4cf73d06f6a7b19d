package nats

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/metrics"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/publish"
)

const reconcileInterval = time.Minute

// Reconciler runs a [publish.Reconciler] at the start, after each connection to NATS and every minute. Fields are
// required unless they name a default.
type Reconciler struct {
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Cell      topology.Cell
	Logger    *slog.Logger
	// Metrics default to none.
	Metrics *metrics.Metrics
	// Trigger starts a run at once. Defaults to never.
	Trigger <-chan struct{}
}

// Part returns the reconciler as a part of a service with the parts "database" and "streams".
func (r *Reconciler) Part() service.Part {
	return service.Part{
		Name: "reconciler", StartAfter: []string{"database", "streams"},
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return r.Run(ctx)
		},
	}
}

// Run reconciles until ctx is done. It retries after errors.
func (r *Reconciler) Run(ctx context.Context) error {
	connected := r.JetStream.Conn().StatusChanged(nats.CONNECTED)
	defer r.JetStream.Conn().RemoveStatusListener(connected)
	interval := time.NewTicker(reconcileInterval)
	defer interval.Stop()
	for {
		if _, err := r.RepublishAll(ctx); err != nil && ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "failed to reconcile the stream with the stored facts; retrying",
				slog.String(logkey.Stream, topology.StreamDeploys), logkey.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-connected:
		case <-interval.C:
		case <-r.Trigger:
		}
	}
}

// RepublishAll reconciles once and returns the number of republished facts.
func (r *Reconciler) RepublishAll(ctx context.Context) (int, error) {
	reconciler := publish.Reconciler{
		Stream: &Stream{JetStream: r.JetStream, Cell: r.Cell, Metrics: r.Metrics}, Facts: postgres.StoredFacts{DB: r.Pool},
		Logger: r.Logger, Metrics: r.Metrics,
	}
	return reconciler.RepublishAll(ctx)
}
