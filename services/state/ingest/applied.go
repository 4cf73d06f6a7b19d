package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// Applied is a decoded event of APPLIED. It is about a workspace or an orphan.
type Applied struct {
	Sequence uint64
	AgentID  int64
	// Label is the workspace id of the event; for an orphan the value of its workspace label, which may be any text.
	// WorkspaceID is the parsed id, or zero if Label is not a UUID.
	Label       string
	WorkspaceID uuid.UUID
	Revision    int64
	At          time.Time
	// Type of the event.
	Type string

	// The applied Deployment and repaired objects; only of events.TypeApplied.
	DeploymentUID        string
	DeploymentGeneration int64
	Repaired             []events.ObjectReference

	// Reason and Message of a failure, or of objects that remain. ClusterRevision is set if the cluster has a newer
	// revision.
	Reason, Message string
	ClusterRevision int64
}

// StoredIn sets where the stream stored the event, and bounds the agent's time by the time at which it did.
func (a *Applied) StoredIn(sequence uint64, stored time.Time) {
	a.Sequence, a.At = sequence, event.AgentTime(a.At, stored)
}

// record returns the workspace after the report.
func (a *Applied) record(w workspace.Workspace) (workspace.Workspace, []workspace.Event) {
	switch a.Type {
	case events.TypeApplied:
		return w.Applied(workspace.AppliedReport{
			Revision: a.Revision, At: a.At, DeploymentUID: a.DeploymentUID, DeploymentGeneration: a.DeploymentGeneration,
			Repaired: a.Repaired,
		})
	case events.TypeApplyFailed:
		if a.ClusterRevision > 0 {
			return w.Superseded(a.ClusterRevision, a.At)
		}
		return w.ApplyFailed(actualstate.ApplyError{Revision: a.Revision, Reason: a.Reason, Message: a.Message}, a.At)
	case events.TypeTerminating:
		return w.Terminating(workspace.TerminatingReport{
			Revision: a.Revision, At: a.At, Reason: a.Reason, Message: a.Message,
		})
	default:
		return w.Terminated(a.Revision, a.At)
	}
}

// recordOrphan returns the orphan after the report.
func (a *Applied) recordOrphan(o orphan.Orphan) orphan.Orphan {
	switch a.Type {
	case events.TypeApplyFailed:
		return o.DeletionFailed(a.Revision, a.ClusterRevision, a.Message)
	case events.TypeTerminating:
		return o.Deleting(a.Revision)
	case events.TypeApplied:
		return o
	default:
		return o.Deleted(a.Revision, a.At)
	}
}

// deletionKey identifies an orphan deletion by agent and workspace label. Several orphans can have the same label; one
// of them is deleted at a time.
type deletionKey struct {
	agentID int64
	label   string
}

// HandleApplied processes a batch of APPLIED.
func (i *Ingest) HandleApplied(ctx context.Context, s Store, batch []*Applied) error {
	ids := make([]uuid.UUID, len(batch))
	for m, a := range batch {
		ids[m] = a.WorkspaceID
	}
	agents, err := s.WorkspaceAgents(ctx, distinct(ids))
	if err != nil {
		return err
	}
	orphans, err := lockOrphans(ctx, s, batch)
	if err != nil {
		return err
	}
	changes := changesByWorkspace{}
	for _, a := range batch {
		agentID, known := agents[a.WorkspaceID]
		deletion := orphans[deletionKey{a.AgentID, a.Label}]
		switch {
		case deletion != nil && deletion.Before.EndedAt.IsZero():
			deletion.After, deletion.At = a.recordOrphan(deletion.After), a.At
		case known && agentID == a.AgentID:
			c := changes.get(a.WorkspaceID, a.At)
			c.applied = append(c.applied, a)
		case deletion != nil: // a duplicate event of an ended deletion
		case known:
			return &UnprocessableError{
				a.Sequence,
				fmt.Errorf("workspace %s belongs to agent %d, not to agent %d", a.WorkspaceID, agentID, a.AgentID),
			}
		default:
			return &UnprocessableError{a.Sequence, fmt.Errorf("workspace %.80q does not exist", a.Label)}
		}
	}
	for _, update := range orphans {
		if err := i.saveOrphan(ctx, s, *update); err != nil {
			return err
		}
	}
	return i.recompute(ctx, s, changes, nil)
}

// saveOrphan stores a changed orphan and publishes the messages of the change.
func (i *Ingest) saveOrphan(ctx context.Context, s Store, update orphan.Update) error {
	if !update.Changed() {
		return nil
	}
	if err := s.SaveOrphan(ctx, update.After); err != nil || i.ReadModelOnly {
		return err
	}
	messages, err := i.Encoder.Orphan(ctx, update)
	if err != nil {
		return err
	}
	return s.InsertMessages(ctx, messages...)
}

// lockOrphans locks the orphans that the batch names. If several have the same label, it returns the one with an
// open deletion.
func lockOrphans(ctx context.Context, s AppliedStore, batch []*Applied) (map[deletionKey]*orphan.Update, error) {
	agents, labels := make([]int64, len(batch)), make([]string, len(batch))
	for m, a := range batch {
		agents[m], labels[m] = a.AgentID, a.Label
	}
	found, err := s.LockDeletions(ctx, agents, labels)
	if err != nil {
		return nil, err
	}
	out := make(map[deletionKey]*orphan.Update, len(found))
	for _, o := range found {
		key := deletionKey{o.AgentID, o.Label}
		if out[key] == nil || o.EndedAt.IsZero() {
			out[key] = &orphan.Update{Before: o, After: o}
		}
	}
	return out, nil
}

// distinct returns the ids once each, without zero.
func distinct(ids []uuid.UUID) []uuid.UUID {
	seen := make(map[uuid.UUID]struct{}, len(ids))
	var out []uuid.UUID
	for _, id := range ids {
		if _, known := seen[id]; !known && id != uuid.Nil {
			seen[id] = struct{}{}
			out = append(out, id)
		}
	}
	return out
}
