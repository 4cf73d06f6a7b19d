package nats

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/domain"
)

// Applied is what a dispatcher says of one revision of a workspace.
type Applied struct {
	AgentID     int64
	WorkspaceID uuid.UUID
	Revision    int64
	At          time.Time
	// Type of the event.
	Type string
	// Reason and Message of a failure.
	Reason, Message string
}

// on is the workspace after it.
func (a Applied) on(w domain.Workspace) domain.Workspace {
	switch a.Type {
	case typeApplied:
		return w.Applied(a.Revision, a.At)
	case typeApplyFailed:
		return w.ApplyFailed(actualstate.ApplyError{Revision: a.Revision, Reason: a.Reason, Message: a.Message}, a.At)
	case typeTerminating:
		return w.Terminating(a.Revision, a.At)
	default:
		return w.Terminated(a.Revision, a.At)
	}
}

// handleApplied takes in a batch of the stream APPLIED.
func (i *Ingest) handleApplied(ctx context.Context, tx pgx.Tx, batch []cursor.Message[Applied]) error {
	owners, err := i.Observations.Owners(ctx, tx, distinct(batch, func(a *Applied) uuid.UUID { return a.WorkspaceID }))
	if err != nil {
		return err
	}
	if err := foreign(batch, owners, func(a *Applied) (int64, uuid.UUID) { return a.AgentID, a.WorkspaceID }); err != nil {
		return err
	}
	concerns := make(map[uuid.UUID]*concern, len(batch))
	for m := range batch {
		a := batch[m].Value
		if _, known := owners[a.WorkspaceID]; !known {
			return &cursor.Poison{Sequence: batch[m].Sequence, Err: fmt.Errorf("workspace %s does not exist", a.WorkspaceID)}
		}
		c := concerned(concerns, a.WorkspaceID, a.At)
		c.applied = append(c.applied, a)
	}
	return i.conclude(ctx, tx, concerns)
}
