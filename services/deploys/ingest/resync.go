package ingest

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/rollout"
)

// beginResync applies the begin of a full resync. A begin that was processed before has no effect.
func (b *batch) beginResync(ctx context.Context, o *observation.Observation) error {
	begun, err := b.store.BeginResync(ctx, o.AgentID, o.ResyncBegun.ResyncID, o.ObservedAt)
	if err != nil || !begun {
		return err
	}
	for m := range b.members {
		if m.AgentID == o.AgentID { // members of the previous resync
			delete(b.members, m)
		}
	}
	if moves(o, b.agents.Agent(o.AgentID).ClusterUID) && !b.addRow(o.AgentID, clusterRows) {
		return nil
	}
	start := b.agents.BeginResync(o)
	if start.PreviousCluster != "" {
		b.logger.WarnContext(ctx, "an agent moved to another cluster", slog.Int64(logkey.AgentID, o.AgentID),
			slog.String(logkey.ClusterUID, o.ClusterUID), slog.String(logkey.PreviousClusterUID, start.PreviousCluster))
	}
	if start.Restored {
		b.logger.WarnContext(ctx, "a cluster was restored; its resource versions restarted",
			slog.Int64(logkey.AgentID, o.AgentID), slog.String(logkey.ClusterUID, o.ClusterUID),
			slog.Int(logkey.Epoch, start.Agent.Epoch))
	}
	return nil
}

// endResync applies the end of a full resync. Workloads that a complete resync did not list are absent.
func (b *batch) endResync(ctx context.Context, o *observation.Observation) error {
	a, open := b.agents.EndResync(o)
	if !open {
		return nil
	}
	authority := b.agents.Authority(a, o.ObservedAt)
	var members []Member
	for m := range b.members {
		if m.AgentID == a.ID {
			members = append(members, m)
			delete(b.members, m)
		}
	}
	// The store has old states of the touched workloads, so it skips them.
	touched := make([]uuid.UUID, 0, len(b.workloads.order))
	for _, w := range b.workloads.order {
		touched = append(touched, w.ID)
	}
	stored, err := b.store.EndResync(ctx, a, authority.AgentIDs, touched, members)
	if err != nil {
		return err
	}
	complete := a.IsComplete(o, stored.Members)
	b.metrics.Resync(complete)
	if !complete {
		b.logger.WarnContext(ctx, "incomplete full resync; workloads that it lacks are not treated as deleted",
			slog.Int64(logkey.AgentID, a.ID), slog.String(logkey.ResyncID, a.ResyncID),
			slog.Int64(logkey.Members, stored.Members), slog.Int64(logkey.Expected, a.ResyncExpected),
			slog.Int(logkey.Reported, o.ResyncEnded.Count))
		return nil
	}
	var absent []*entry[rollout.State]
	for _, w := range b.workloads.order {
		covered := authority.Covers(w.State.Key.ClusterUID, w.AgentID)
		if covered && w.State.Expected() && !stored.Listed[w.ID] {
			absent = append(absent, w)
		}
	}
	b.workloads.load(stored.Absent)
	for i := range stored.Absent {
		absent = append(absent, b.workloads.touch(stored.Absent[i].ID, stored.Absent[i].State))
	}
	sortByID(absent)
	for _, w := range absent {
		absence := a.Absence(w.State.Key.Kind)
		if absence == nil {
			continue
		}
		input := b.agents.Input(a, o.ObservedAt)
		input.AgentID, input.Absence = w.AgentID, absence // on behalf of the agent that reported the workload
		b.advance(w, input)
	}
	b.agents.CompleteResync(a)
	return nil
}
