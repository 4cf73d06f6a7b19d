package nats

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

// Applied is what a dispatcher says of one revision of a workspace, or of an orphan that it was told to delete.
type Applied struct {
	AgentID int64
	// Label names the workspace. WorkspaceID is the same, zero where that is no id.
	Label       string
	WorkspaceID uuid.UUID
	Revision    int64
	At          time.Time
	// Type of the event.
	Type string

	// What was left, and what was repaired, where a revision was applied.
	DeploymentUID        string
	DeploymentGeneration int64
	Repaired             []events.ObjectReference

	// Reason and Message of a failure, and the revision that the cluster has where it is newer.
	Reason, Message string
	ClusterRevision int64
}

// on is the workspace after it.
func (a Applied) on(w domain.Workspace) domain.Workspace {
	switch a.Type {
	case typeApplied:
		return w.TakeIn(domain.Application{
			Revision: a.Revision, At: a.At, DeploymentUID: a.DeploymentUID, DeploymentGeneration: a.DeploymentGeneration, Repaired: a.Repaired,
		})
	case typeApplyFailed:
		if a.ClusterRevision > 0 {
			return w.Superseded(a.ClusterRevision, a.At)
		}
		return w.ApplyFailed(actualstate.ApplyError{Revision: a.Revision, Reason: a.Reason, Message: a.Message}, a.At)
	case typeTerminating:
		return w.Terminating(a.Revision, a.At)
	default:
		return w.Terminated(a.Revision, a.At)
	}
}

// onOrphan is the orphan after it.
func (a Applied) onOrphan(o domain.Orphan) domain.Orphan {
	switch a.Type {
	case typeApplyFailed:
		return o.DeletionFailed(a.Revision, a.ClusterRevision, a.Message)
	case typeTerminating:
		return o.Deleting(a.Revision)
	case typeApplied:
		return o
	default:
		return o.Deleted(a.Revision, a.At)
	}
}

// handleApplied takes in a batch of the stream APPLIED.
func (i *Ingest) handleApplied(ctx context.Context, tx pgx.Tx, batch []cursor.Message[Applied]) error {
	owners, err := i.Observations.Owners(ctx, tx, distinct(batch, func(a *Applied) uuid.UUID { return a.WorkspaceID }))
	if err != nil {
		return err
	}
	orphans, err := i.deleting(ctx, tx, batch)
	if err != nil {
		return err
	}
	concerns := make(map[uuid.UUID]*concern, len(batch))
	for m := range batch {
		a := batch[m].Value
		owner, known := owners[a.WorkspaceID]
		orphan := orphans[orphanKey{a.AgentID, a.Label}]
		switch {
		case orphan != nil && orphan.Before.EndedAt.IsZero():
			orphan.After, orphan.at = a.onOrphan(orphan.After), a.At
		case known && owner == a.AgentID:
			c := concerned(concerns, a.WorkspaceID, a.At)
			c.applied = append(c.applied, a)
		case orphan != nil: // it is over: this is told twice
		case known:
			return &cursor.DeadLetterError{Sequence: batch[m].Sequence, Err: fmt.Errorf("workspace %s is another agent's, not of agent %d", a.WorkspaceID, a.AgentID)}
		default:
			return &cursor.DeadLetterError{Sequence: batch[m].Sequence, Err: fmt.Errorf("workspace %.80q does not exist", a.Label)}
		}
	}
	for _, o := range orphans {
		if err := i.Observations.SaveOrphan(ctx, tx, o.OrphanSaving, o.at); err != nil {
			return err
		}
	}
	return i.conclude(ctx, tx, concerns)
}

// orphanKey names what dispatchers are told to delete: the label of an orphan, or of several, of which one at a time is deleted.
type orphanKey struct {
	agentID int64
	label   string
}

// deletion is what a batch says of one orphan.
type deletion struct {
	postgres.OrphanSaving

	// at is the time of the last event about it.
	at time.Time
}

// deleting locks the orphans that the batch is about: of those with one label the one that is not over.
func (i *Ingest) deleting(ctx context.Context, tx pgx.Tx, batch []cursor.Message[Applied]) (map[orphanKey]*deletion, error) {
	agents, labels := make([]int64, 0, len(batch)), make([]string, 0, len(batch))
	for m := range batch {
		agents, labels = append(agents, batch[m].Value.AgentID), append(labels, batch[m].Value.Label)
	}
	found, err := i.Observations.LockDeleting(ctx, tx, agents, labels)
	if err != nil {
		return nil, err
	}
	out := make(map[orphanKey]*deletion, len(found))
	for _, o := range found {
		key := orphanKey{o.AgentID, o.Label}
		if was := out[key]; was == nil || o.EndedAt.IsZero() {
			out[key] = &deletion{OrphanSaving: postgres.OrphanSaving{Before: o, After: o}}
		}
	}
	return out, nil
}
