package nats

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/roster"
)

// beginResync takes in the begin of a full resync. One that is known says nothing new: least of all that the agent is in that cluster, or follows that selection.
func (in *intake) beginResync(ctx context.Context, o *Observed) error {
	// Members of the one before do not count any more.
	for m := range in.members {
		if m.AgentID == o.AgentID {
			delete(in.members, m)
		}
	}
	begun, err := in.Store.BeginResync(ctx, in.tx, o.AgentID, o.Begun.ResyncID, o.At)
	if err != nil || !begun {
		return err
	}
	next := in.roster.Begin(o)
	if next.Before != "" {
		in.Logger.WarnContext(ctx, "an agent is in another cluster", "agent", o.AgentID, "cluster_uid", o.ClusterUID, "cluster_uid_before", next.Before)
	}
	if next.Restored {
		in.Logger.WarnContext(ctx, "the cluster of an agent was restored: a new epoch of its versions begins",
			"agent", o.AgentID, "cluster_uid", o.ClusterUID, "epoch", next.Agent.Epoch)
	}
	return nil
}

// endResync takes in the end of a full resync, and what is absent by it.
func (in *intake) endResync(ctx context.Context, o *Observed) error {
	a, open := in.roster.End(o)
	if !open {
		return nil
	}
	word := in.roster.SpeaksFor(a, o.At)
	present := in.present(word)
	stored, err := in.resynced(ctx, a, word)
	if err != nil {
		return err
	}
	complete := a.Whole(o, stored.Members)
	in.Metrics.resync(complete)
	if !complete {
		in.Logger.WarnContext(ctx, "a full resync did not come in whole, nothing is judged by it", "agent", a.ID, "resync", a.ResyncID,
			"members", stored.Members, "expected", a.Expected, "told", o.Ended.Count)
		return nil
	}
	if err := load(stored.Absent, in.loaded); err != nil {
		return err
	}
	absent := make([]*workload, 0, len(stored.Absent))
	for i := range stored.Absent {
		id := stored.Absent[i].ID
		absent = append(absent, in.workload(id, in.loaded[id].state.Key))
	}
	for _, w := range present {
		if !stored.Came[w.id] {
			absent = append(absent, w)
		}
	}
	slices.SortFunc(absent, func(a, b *workload) int { return slices.Compare(a.id[:], b.id[:]) })
	for _, w := range absent {
		in.absent(a, w, o.At)
	}
	in.roster.Complete(a)
	return nil
}

// resynced stores what has come so far, and reads what came in all.
func (in *intake) resynced(ctx context.Context, a *roster.Agent, word roster.Word) (postgres.Resynced, error) {
	var writing postgres.Writing
	for m := range in.members {
		if m.AgentID == a.ID {
			writing.Members = append(writing.Members, m)
			delete(in.members, m)
		}
	}
	if err := in.Store.Save(ctx, in.tx, writing); err != nil {
		return postgres.Resynced{}, err
	}
	// What this batch knows otherwise than the database is looked at here.
	touched := make([]uuid.UUID, 0, len(in.order))
	for _, w := range in.order {
		touched = append(touched, w.id)
	}
	stored, err := in.Store.Resynced(ctx, in.tx, a.ID, a.ClusterUID, word.Agents, touched)
	if err != nil {
		return postgres.Resynced{}, err
	}
	return stored, in.Store.ForgetMembers(ctx, in.tx, a.ID)
}

// present are the workloads of the batch that agents have told of in a cluster and that are there.
func (in *intake) present(word roster.Word) []*workload {
	var found []*workload
	for _, w := range in.order {
		if word.Concerns(w.key.ClusterUID, w.agentID) && w.state.Present() {
			found = append(found, w)
		}
	}
	return found
}

// absent takes in that a complete full resync lacks a workload.
func (in *intake) absent(a *roster.Agent, w *workload, at time.Time) {
	absence := a.Absence(w.key.Kind)
	if absence == nil {
		return
	}
	input := in.roster.Input(a, at)
	// It may speak in the place of another.
	input.AgentID, input.Absence = w.agentID, absence
	in.advance(w, input)
}
