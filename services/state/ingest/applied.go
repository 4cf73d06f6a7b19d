package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// Applied is a dispatcher's report about one revision of a workspace, or of an orphan that it deletes.
type Applied struct {
	Sequence uint64
	AgentID  int64
	// Label names the workspace. WorkspaceID is its id, or zero if the label is no id.
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

	// Reason and Message of a failure. ClusterRevision is set if the cluster has a newer revision.
	Reason, Message string
	ClusterRevision int64
}

// apply returns the workspace after the report.
func (a *Applied) apply(w workspace.Workspace) (workspace.Workspace, []workspace.Event) {
	switch a.Type {
	case events.TypeApplied:
		return w.Applied(workspace.Application{
			Revision: a.Revision, At: a.At, DeploymentUID: a.DeploymentUID, DeploymentGeneration: a.DeploymentGeneration,
			Repaired: a.Repaired,
		})
	case events.TypeApplyFailed:
		if a.ClusterRevision > 0 {
			return w.Superseded(a.ClusterRevision, a.At)
		}
		return w.ApplyFailed(actualstate.ApplyError{Revision: a.Revision, Reason: a.Reason, Message: a.Message}, a.At)
	case events.TypeTerminating:
		return w.Terminating(a.Revision, a.At)
	default:
		return w.Terminated(a.Revision, a.At)
	}
}

// applyToOrphan returns the orphan after the report.
func (a *Applied) applyToOrphan(o orphan.Orphan) orphan.Orphan {
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

// label identifies what dispatchers delete as an orphan. Several orphans may have one label; one of them
// is deleted at a time.
type label struct {
	agentID int64
	text    string
}

// Applied applies a batch of APPLIED.
func (i *Ingest) Applied(ctx context.Context, s Store, batch []*Applied) error {
	ids := make([]uuid.UUID, len(batch))
	for m, a := range batch {
		ids[m] = a.WorkspaceID
	}
	owners, err := s.Owners(ctx, distinct(ids))
	if err != nil {
		return err
	}
	orphans, err := lockOrphans(ctx, s, batch)
	if err != nil {
		return err
	}
	updates := workspaceUpdates{}
	for _, a := range batch {
		owner, known := owners[a.WorkspaceID]
		deletion := orphans[label{a.AgentID, a.Label}]
		switch {
		case deletion != nil && deletion.Before.EndedAt.IsZero():
			deletion.After, deletion.At = a.applyToOrphan(deletion.After), a.At
		case known && owner == a.AgentID:
			update := updates.of(a.WorkspaceID, a.At)
			update.applied = append(update.applied, a)
		case deletion != nil: // the deletion has ended: a repeated report
		case known:
			return &Rejected{
				a.Sequence,
				fmt.Errorf("workspace %s belongs to agent %d, not to agent %d", a.WorkspaceID, owner, a.AgentID),
			}
		default:
			return &Rejected{a.Sequence, fmt.Errorf("workspace %.80q does not exist", a.Label)}
		}
	}
	for _, update := range orphans {
		if err := s.SaveOrphan(ctx, *update); err != nil {
			return err
		}
	}
	return i.recompute(ctx, s, updates)
}

// lockOrphans returns the orphans that the batch is about. Of several with one label it returns the one
// whose deletion has not ended.
func lockOrphans(ctx context.Context, s AppliedStore, batch []*Applied) (map[label]*orphan.Update, error) {
	agents, labels := make([]int64, len(batch)), make([]string, len(batch))
	for m, a := range batch {
		agents[m], labels[m] = a.AgentID, a.Label
	}
	found, err := s.LockDeletions(ctx, agents, labels)
	if err != nil {
		return nil, err
	}
	out := make(map[label]*orphan.Update, len(found))
	for _, o := range found {
		key := label{o.AgentID, o.Label}
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
