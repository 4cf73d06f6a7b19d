package nats

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/postgres"
)

// Names of the consumers: their cursors are kept by them.
const (
	observedConsumer = "observed"
	appliedConsumer  = "applied"
	serviceName      = "state"
)

// Ingest reads what agents say into the database: what watchers observe (stream OBSERVED) and what dispatchers apply (stream APPLIED). Both
// end in the same way: the workspaces concerned are locked in the order of their ids, computed anew from everything stored, and saved with their events. The streams
// are read independently of each other, so nothing is decided by which of two events of different streams came first. All fields that name no default are required.
type Ingest struct {
	Pool         *pgxpool.Pool
	JetStream    jetstream.JetStream
	Cell         topology.Cell
	Logger       *slog.Logger
	Workspaces   *postgres.Workspaces
	Observations *postgres.Observations
	// Batch is how many messages one transaction takes at most. Defaults to the cursor's default.
	Batch int
	// Cursors are the metrics of the consumers, and Metrics those of what they find. Both default to none.
	Cursors *cursor.Metrics
	Metrics *IngestMetrics
}

// Parts are the two consumers as parts of a service that has parts "database" and "streams".
func (i *Ingest) Parts() ([]service.Part, error) {
	observed, err := i.Observed()
	if err != nil {
		return nil, err
	}
	applied, err := i.Applied()
	if err != nil {
		return nil, err
	}
	return []service.Part{consumerPart(observedConsumer, observed), consumerPart(appliedConsumer, applied)}, nil
}

func consumerPart[T any](name string, consumer *cursor.Consumer[T]) service.Part {
	return service.Part{
		Name: "ingest-" + name, StartAfter: []string{"database", "streams"}, Check: consumer.Check,
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return consumer.Run(ctx)
		},
	}
}

// Observed is the consumer of the stream OBSERVED.
func (i *Ingest) Observed() (*cursor.Consumer[Observed], error) {
	if _, err := observables(); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	c, err := cursor.New(cursor.Config[Observed]{
		Name: observedConsumer, Stream: topology.StreamObserved, Pool: i.Pool, JetStream: i.JetStream, Logger: i.Logger, Cell: i.Cell, Service: serviceName,
		Metrics: i.Cursors, Batch: i.Batch,
		Decode: func(m *cursor.Message[Observed]) error {
			value, err := decodeObserved(i.Cell, m.Subject, m.Header, m.Data)
			m.Value = value
			return err
		},
		Handle: i.handleObserved,
		Restarted: func(ctx context.Context, tx pgx.Tx, _ cursor.Restart) error {
			// What the stream lacks now is known to the clusters only.
			return i.Observations.AskEveryone(ctx, tx, events.ResyncRequestCauseRestoredStream, time.Now())
		},
	})
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	return c, nil
}

// Applied is the consumer of the stream APPLIED.
func (i *Ingest) Applied() (*cursor.Consumer[Applied], error) {
	c, err := cursor.New(cursor.Config[Applied]{
		Name: appliedConsumer, Stream: topology.StreamApplied, Pool: i.Pool, JetStream: i.JetStream, Logger: i.Logger, Cell: i.Cell, Service: serviceName,
		Metrics: i.Cursors, Batch: i.Batch,
		Decode: func(m *cursor.Message[Applied]) error {
			value, err := decodeApplied(i.Cell, m.Subject, m.Header, m.Data)
			m.Value = value
			return err
		},
		Handle: i.handleApplied,
	})
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	return c, nil
}

// concern is what a batch says of one workspace.
type concern struct {
	// applied is what its dispatcher says, in order.
	applied []Applied
	// gone and listed are those of state.Observation.
	gone   bool
	listed time.Time
	// at is the time of the last event about it.
	at time.Time
}

// conclude computes the workspaces concerned anew and saves them.
func (i *Ingest) conclude(ctx context.Context, tx pgx.Tx, concerns map[uuid.UUID]*concern) error {
	if len(concerns) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, 0, len(concerns))
	for id := range concerns {
		ids = append(ids, id)
	}
	locked, observations, err := i.Observations.LockAndObserve(ctx, tx, ids)
	if err != nil {
		return err
	}
	savings := make([]postgres.Saving, 0, len(locked))
	for id, before := range locked {
		c, o := concerns[id], observations[id]
		o.Gone, o.Listed, o.At = c.gone, c.listed, c.at
		if o.At.IsZero() {
			o.At = o.Clock
		}
		after := before
		for _, a := range c.applied {
			after = a.on(after)
		}
		after = after.Observe(*o).Expire(o.AgePolicies, o.Clock)
		savings = append(savings, postgres.Saving{Before: before, After: after})
		if after.DesiredRevision != before.DesiredRevision {
			i.Logger.InfoContext(ctx, "the cluster is told anew", "workspace", id, "agent", after.AgentID, "cause", after.Cause.Kind, "revision", after.DesiredRevision)
			i.Metrics.dispatched(after.Cause.Kind)
		}
	}
	// In a fixed order, so that the same batch gives the same events in the same order.
	slices.SortFunc(savings, func(a, b postgres.Saving) int { return cmp.Compare(a.After.ID.String(), b.After.ID.String()) })
	return i.Workspaces.SaveAll(ctx, tx, savings)
}

// concerned gives the concern of a workspace, made when there is none.
func concerned(concerns map[uuid.UUID]*concern, id uuid.UUID, at time.Time) *concern {
	c, there := concerns[id]
	if !there {
		c = &concern{}
		concerns[id] = c
	}
	if at.After(c.at) {
		c.at = at
	}
	return c
}

// distinct are the different workspaces of a batch, zero left out.
func distinct[T any](batch []cursor.Message[T], of func(*T) uuid.UUID) []uuid.UUID {
	seen := make(map[uuid.UUID]struct{}, len(batch))
	var ids []uuid.UUID
	for i := range batch {
		id := of(&batch[i].Value)
		if _, there := seen[id]; there || id == uuid.Nil {
			continue
		}
		seen[id] = struct{}{}
		ids = append(ids, id)
	}
	return ids
}
