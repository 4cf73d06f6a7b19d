package ingest

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// recomputeChunk bounds the workspaces that are in memory with their observations.
const recomputeChunk = 500

// Ingest applies batches. It is stateless and safe for concurrent use.
type Ingest struct {
	Logger *slog.Logger
	// Metrics defaults to none.
	Metrics *Metrics
	// ReadModelOnly keeps the desired state and drops the events. A rebuild sets it.
	ReadModelOnly bool
}

// workspaceUpdate is what a batch reports about one workspace.
type workspaceUpdate struct {
	// applied are the dispatcher's reports, in order.
	applied []*Applied
	// gone and listed are fields of workspace.Observation.
	gone   bool
	listed time.Time
	// at is the time of the last event about the workspace.
	at time.Time
}

type workspaceUpdates map[uuid.UUID]*workspaceUpdate

// of returns the update of a workspace for an event at a time.
func (u workspaceUpdates) of(id uuid.UUID, at time.Time) *workspaceUpdate {
	update, known := u[id]
	if !known {
		update = &workspaceUpdate{}
		u[id] = update
	}
	if at.After(update.at) {
		update.at = at
	}
	return update
}

// Recompute computes the workspaces from everything stored about them, and stores the updates.
func (i *Ingest) Recompute(ctx context.Context, s WorkspaceStore, ids []uuid.UUID) error {
	updates := make(workspaceUpdates, len(ids))
	for _, id := range ids {
		updates[id] = &workspaceUpdate{}
	}
	return i.recompute(ctx, s, updates)
}

// recompute goes through the workspaces in the order of their ids: rows are locked in that order, and the
// same batch gives the same events in the same order.
func (i *Ingest) recompute(ctx context.Context, s WorkspaceStore, batch workspaceUpdates) error {
	ids := slices.SortedFunc(maps.Keys(batch), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	for chunk := range slices.Chunk(ids, recomputeChunk) {
		locked, observations, err := s.LockWorkspaces(ctx, chunk)
		if err != nil {
			return err
		}
		updates := make([]workspace.Update, 0, len(chunk))
		for _, id := range chunk {
			if before, known := locked[id]; known {
				update := batch[id].decide(before, *observations[id])
				i.report(ctx, update)
				if i.ReadModelOnly {
					update.After, update.Events = update.After.WithDesiredFrom(before), nil
				}
				updates = append(updates, update)
			}
		}
		if err := s.SaveWorkspaces(ctx, updates); err != nil {
			return err
		}
	}
	return nil
}

// decide applies the reports of a batch to a workspace.
func (u *workspaceUpdate) decide(before workspace.Workspace, o workspace.Observation) workspace.Update {
	o.Gone, o.Listed, o.At = u.gone, u.listed, u.at
	if o.At.IsZero() {
		o.At = o.Clock // only the clock has changed
	}
	update := workspace.Update{Before: before, After: before}
	then := func(after workspace.Workspace, events []workspace.Event) {
		update.After, update.Events = after, append(update.Events, events...)
	}
	for _, a := range u.applied {
		then(a.apply(update.After))
	}
	then(update.After.Observe(o))
	then(update.After.Expire(o.AgePolicies, o.Clock))
	return update
}

// report logs and counts what the system decided by itself.
func (i *Ingest) report(ctx context.Context, u workspace.Update) {
	for _, e := range u.Events {
		switch data := e.Data.(type) {
		case events.WorkspaceDesiredStateChanged:
			i.Logger.InfoContext(
				ctx,
				"made a new desired revision",
				slog.String("workspace_id", data.WorkspaceID),
				slog.Int(
					"agent_id",
					data.AgentID,
				),
				slog.String("cause", string(*data.Cause)),
				slog.Int("revision", data.DesiredRevision),
			)
			i.Metrics.dispatched(*data.Cause)
		case events.WorkspaceStateChanged:
			if data.Unexpected {
				i.Metrics.unexpectedChange(data.From, data.To)
			}
		}
	}
}
