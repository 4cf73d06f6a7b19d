// Package republish publishes everything again after a stream or the database was restored from an older backup.
package republish

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
)

// Republisher publishes everything again. Its fields are required.
type Republisher struct {
	Directory    *admin.Directory
	Workspaces   *postgres.Workspaces
	IngestStores *postgres.IngestStores
	Ingest       *ingest.Ingest
}

// All publishes the directory, all configurations, all desired states and who may enter again, and requests a full
// resync from each agent. It locks in the usual order: agents before workspaces.
func (r *Republisher) All(ctx context.Context, tx pgx.Tx, restored outbox.Restoration) error {
	if restored.Stream == "" { // the database
		if err := r.Directory.RaiseConfigurations(ctx, tx); err != nil {
			return fmt.Errorf("publish the configurations again: %w", err)
		}
	}
	store, cause := r.IngestStores.In(tx), events.ResyncRequestCauseRestoredStream
	if err := r.Ingest.RequestAllResyncs(ctx, store, cause, time.Now()); err != nil {
		return fmt.Errorf("request full resyncs: %w", err)
	}
	if err := r.Directory.RepublishAll(ctx, tx); err != nil {
		return fmt.Errorf("publish the directory again: %w", err)
	}
	if err := r.DesiredStates(ctx, tx); err != nil {
		return fmt.Errorf("publish the workspaces again: %w", err)
	}
	return nil
}

// chunk bounds the rendered manifests in memory.
const chunk = 100

// DesiredStates publishes the desired state of every workspace, and who may enter it, again. Workspaces that terminated
// more than 30 days ago are left out.
func (r *Republisher) DesiredStates(ctx context.Context, tx pgx.Tx) error {
	workspaces, err := r.Workspaces.LockRetained(ctx, tx)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(workspaces, chunk) {
		agents := make([]int64, len(some))
		for i, w := range some {
			agents[i] = w.AgentID
		}
		configured, err := r.IngestStores.In(tx).AgentConfigurations(ctx, agents)
		if err != nil {
			return err
		}
		messages := make([]*nats.Msg, 0, 2*len(some))
		for _, w := range some {
			desired, err := r.Ingest.Encoder.Desired(ctx, configured, w)
			if err != nil {
				return err
			}
			access, err := r.Ingest.Encoder.Access(ctx, w)
			if err != nil {
				return err
			}
			messages = append(messages, desired, access)
		}
		if err := outbox.Insert(ctx, tx, messages...); err != nil {
			return fmt.Errorf("publish %d workspaces: %w", len(some), err)
		}
	}
	return nil
}

// FirstAccess publishes who may enter every workspace if nothing has been published to ACCESS yet: an earlier version
// of the service has created the workspaces.
func (r *Republisher) FirstAccess(ctx context.Context, tx pgx.Tx) error {
	cell := r.Ingest.Encoder.Cell
	published, err := outbox.HasPublished(ctx, tx, topology.StreamAccess, cell.Prefix(topology.FamilyAccess)+".")
	if err != nil || published {
		return err
	}
	workspaces, err := r.Workspaces.LockRetained(ctx, tx)
	if err != nil {
		return err
	}
	messages := make([]*nats.Msg, len(workspaces))
	for i, w := range workspaces {
		if messages[i], err = r.Ingest.Encoder.Access(ctx, w); err != nil {
			return err
		}
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("publish who may enter %d workspaces: %w", len(messages), err)
	}
	return nil
}
