package ingest

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
)

// recomputeChunk limits how many workspaces are loaded at once.
const recomputeChunk = 500

// Ingest processes batches. It is stateless and safe for concurrent use.
type Ingest struct {
	Logger *slog.Logger
	// Encoder makes the messages that are published. It is unused with ReadModelOnly.
	Encoder publish.Encoder
	// Metrics defaults to none.
	Metrics *Metrics
	// MaxObjects is a limit of each agent. Defaults to agent.MaxObjects.
	MaxObjects int64
	// ActivityReadUntil returns the time until which all activity in workspaces is known, by the clock of the stream.
	// Without it, no idle workspace is stopped.
	ActivityReadUntil func() time.Time
	// ReadModelOnly disables changes of the desired state, and publishes nothing. A rebuild sets it.
	ReadModelOnly bool
}

// workspaceChanges collects the events of one batch about one workspace.
type workspaceChanges struct {
	// applied are the dispatcher's reports, in order.
	applied []*Applied
	// renderAt is the time at which the manifests are rendered again; zero if they are not.
	renderAt time.Time
	// deploymentDeleted and resyncBegunAt are fields of workspace.Observation.
	deploymentDeleted bool
	resyncBegunAt     time.Time
	// at is the time of the last event about the workspace.
	at time.Time
}

type changesByWorkspace map[uuid.UUID]*workspaceChanges

// get returns the entry of a workspace, creates it if missing, and raises its time to at.
func (c changesByWorkspace) get(id uuid.UUID, at time.Time) *workspaceChanges {
	changes, known := c[id]
	if !known {
		changes = &workspaceChanges{}
		c[id] = changes
	}
	if at.After(changes.at) {
		changes.at = at
	}
	return changes
}

// Recompute recomputes the actual state of the workspaces and stores it.
func (i *Ingest) Recompute(ctx context.Context, s WorkspaceStore, ids []uuid.UUID) error {
	changes := make(changesByWorkspace, len(ids))
	for _, id := range ids {
		changes[id] = &workspaceChanges{}
	}
	return i.recompute(ctx, s, changes, nil)
}

// Render renders the manifests of workspaces again, with a new desired revision.
func (i *Ingest) Render(ctx context.Context, s WorkspaceStore, ids []uuid.UUID, now time.Time) error {
	changes := make(changesByWorkspace, len(ids))
	for _, id := range ids {
		changes[id] = &workspaceChanges{renderAt: now}
	}
	return i.recompute(ctx, s, changes, nil)
}

// recompute processes the workspaces in id order. So locks do not deadlock, and events have a deterministic
// order. ticked has the storage time of the last tick of each agent that ticked in the batch. Policies act only then:
// without a tick, the time since the last one is unknown.
func (i *Ingest) recompute(
	ctx context.Context, s WorkspaceStore, changes changesByWorkspace, ticked map[int64]time.Time,
) error {
	ids := slices.SortedFunc(maps.Keys(changes), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	var activityReadUntil time.Time
	if i.ActivityReadUntil != nil {
		activityReadUntil = i.ActivityReadUntil() // before the locks, which then wait for what was read
	}
	for chunk := range slices.Chunk(ids, recomputeChunk) {
		locked, observations, err := s.LockWorkspaces(ctx, chunk)
		if err != nil {
			return err
		}
		updates := make([]workspace.Update, 0, len(chunk))
		for _, id := range chunk {
			if before, known := locked[id]; known {
				observations[id].AgePolicies.ActivityReadUntil = activityReadUntil
				update := changes[id].decide(before, *observations[id], ticked[before.AgentID])
				i.logDecisions(ctx, update)
				if i.ReadModelOnly {
					update.After, update.Events = update.After.WithDesiredFrom(before), nil
				}
				updates = append(updates, update)
			}
		}
		if err := i.saveWorkspaces(ctx, s, updates); err != nil {
			return err
		}
	}
	return nil
}

// saveWorkspaces stores the workspaces that have changed and publishes the messages of the changes.
func (i *Ingest) saveWorkspaces(ctx context.Context, s WorkspaceStore, updates []workspace.Update) error {
	changed := slices.DeleteFunc(updates, func(u workspace.Update) bool { return !u.Changed() })
	after := make([]workspace.Workspace, len(changed))
	for n := range changed {
		after[n] = changed[n].After
	}
	if err := s.SaveWorkspaces(ctx, after); err != nil || i.ReadModelOnly {
		return err
	}
	configured, err := s.AgentConfigurations(ctx, agentsOf(changed))
	if err != nil {
		return err
	}
	messages, err := i.Encoder.Workspaces(ctx, configured, changed...)
	if err != nil {
		return err
	}
	return s.InsertMessages(ctx, messages...)
}

// agentsOf returns the agents of the updates that render manifests, once each.
func agentsOf(updates []workspace.Update) []int64 {
	var ids []int64
	for _, u := range updates {
		if u.Renders() && !slices.Contains(ids, u.After.AgentID) {
			ids = append(ids, u.After.AgentID)
		}
	}
	return ids
}

// decide processes the collected changes of one workspace: the reports of the dispatcher, then Render, Observe and
// Expire.
func (c *workspaceChanges) decide(
	before workspace.Workspace, o workspace.Observation, ticked time.Time,
) workspace.Update {
	o.DeploymentDeleted, o.ResyncBegunAt, o.At = c.deploymentDeleted, c.resyncBegunAt, c.at
	if o.At.IsZero() {
		o.At = o.Clock // only the clock has changed
	}
	update := workspace.Update{Before: before, After: before}
	add := func(after workspace.Workspace, events []workspace.Event) {
		update.After, update.Events = after, append(update.Events, events...)
	}
	for _, a := range c.applied {
		add(a.record(update.After))
	}
	if !c.renderAt.IsZero() {
		add(update.After.Render(c.renderAt))
	}
	add(update.After.Observe(o))
	add(update.After.Expire(o.AgePolicies, ticked))
	return update
}

// logDecisions logs and counts revisions that the system created, and counts warnings and unexpected state changes.
func (i *Ingest) logDecisions(ctx context.Context, u workspace.Update) {
	for _, e := range u.Events {
		switch data := e.Data.(type) {
		case events.WorkspaceDesiredStateChanged:
			i.Logger.InfoContext(ctx, "created a desired revision",
				slog.String(logkey.WorkspaceID, data.WorkspaceID), slog.Int(logkey.AgentID, data.AgentID),
				slog.String(logkey.Cause, string(*data.Cause)), slog.Int(logkey.Revision, data.DesiredRevision))
			i.Metrics.dispatched(*data.Cause)
		case events.WorkspaceExpiryWarning:
			i.Metrics.warned(data.Policy)
		case events.WorkspaceStateChanged:
			if data.Unexpected {
				i.Metrics.unexpectedChange(data.From, data.To)
			}
		}
	}
}
