package nats

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
)

// listedApart is how long there must be between two listings for the later one to be no older by mere delay.
const listedApart = time.Minute

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
	a := in.change(in.agent(o.AgentID))
	clear(in.epochs)
	if a.ClusterUID != o.ClusterUID {
		if a.ClusterUID != "" {
			in.Logger.WarnContext(ctx, "an agent is in another cluster", "agent", a.ID, "cluster_uid", o.ClusterUID, "cluster_uid_before", a.ClusterUID)
		}
		*a = postgres.Agent{ID: a.ID, ClusterUID: o.ClusterUID, TickedAt: a.TickedAt}
	}
	a.ResyncID, a.Open, a.Expected, a.ResyncAt, a.Selection = o.Begun.ResyncID, true, int64(o.Begun.Count), o.At, o.Begun.Selection
	a.Versions = make(map[string]string, len(o.Begun.ListVersions))
	for _, v := range o.Begun.ListVersions {
		a.Versions[v.Kind] = v.ResourceVersion
	}
	in.judgeEpoch(ctx, a)
	return nil
}

// judgeEpoch notices that the cluster's store was restored: everything that is listed now has lower versions than was listed long before.
func (in *intake) judgeEpoch(ctx context.Context, a *postgres.Agent) {
	if len(a.Versions) == 0 {
		return
	}
	if a.ListedAt.IsZero() {
		a.Listed, a.ListedAt = a.Versions, a.ResyncAt
		return
	}
	if a.ResyncAt.Sub(a.ListedAt) < listedApart {
		return
	}
	lower := true
	for kind, listed := range a.Versions {
		before, known := a.Listed[kind]
		lower = lower && known && below(listed, before)
	}
	a.Listed, a.ListedAt = a.Versions, a.ResyncAt
	if !lower {
		return
	}
	a.Epoch = in.epoch(a) + 1
	clear(in.epochs)
	in.Logger.WarnContext(ctx, "the cluster of an agent was restored: a new epoch of its versions begins", "agent", a.ID, "cluster_uid", a.ClusterUID, "epoch", a.Epoch)
}

// endResync takes in the end of a full resync, and what is absent by it.
func (in *intake) endResync(ctx context.Context, o *Observed) error {
	a := in.agent(o.AgentID)
	if !a.Open || a.ResyncID != o.Ended.ResyncID {
		return nil
	}
	a = in.change(a)
	a.Open = false
	agents := in.speaksFor(a, o.At)
	present := in.present(a.ClusterUID, agents)
	stored, err := in.resynced(ctx, a, agents)
	if err != nil {
		return err
	}
	complete := stored.Members == a.Expected && int64(o.Ended.Count) == a.Expected
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
	selection := a.Selection
	if a.Complete == nil || *a.Complete != selection {
		a.CompleteAt = o.At
	}
	a.Complete = &selection
	return nil
}

// resynced stores what has come so far, and reads what came in all.
func (in *intake) resynced(ctx context.Context, a *postgres.Agent, agents []int64) (postgres.Resynced, error) {
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
	stored, err := in.Store.Resynced(ctx, in.tx, a.ID, a.ClusterUID, agents, touched)
	if err != nil {
		return postgres.Resynced{}, err
	}
	return stored, in.Store.ForgetMembers(ctx, in.tx, a.ID)
}

// present are the workloads of the batch that agents have told of in a cluster and that are there.
func (in *intake) present(cluster string, agents []int64) []*workload {
	var found []*workload
	for _, w := range in.order {
		if w.key.ClusterUID == cluster && slices.Contains(agents, w.agentID) && w.state.Present() {
			found = append(found, w)
		}
	}
	return found
}

// absent takes in that a complete full resync lacks a workload. If the watcher follows others than at the last one, it may still be there.
func (in *intake) absent(a *postgres.Agent, w *workload, at time.Time) {
	listed, known := a.Versions[w.key.Kind]
	if !known {
		return
	}
	input := in.input(a, at)
	// It may speak in the place of another.
	input.AgentID = w.agentID
	input.Absence = &rollout.Absence{ListVersion: listed, Unselected: a.Complete != nil && *a.Complete != a.Selection}
	in.advance(w, input)
}
