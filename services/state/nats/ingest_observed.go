package nats

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

// Observed is what a watcher says: an object, a tick, or the begin or end of a full resync.
type Observed struct {
	// Ignored is that it is about workloads whose rollouts are followed, or a full resync of those: nothing of it is read, and the rest is empty.
	Ignored bool

	AgentID    int64
	ClusterUID string
	At         time.Time
	// Object is nil for the others. Its epoch is not known yet.
	Object *postgres.Object
	// Label that names the object's workspace, which may be no id.
	Label string
	// Begun and Ended are nil but for those.
	Begun *events.ObservedResyncBegun
	Ended *events.ObservedResyncEnded
	Tick  bool
}

func (o *Observed) workspaceID() uuid.UUID {
	if o.Object == nil {
		return uuid.Nil
	}
	return o.Object.WorkspaceID
}

// intake is one batch of the stream OBSERVED on its way into the database.
type intake struct {
	*Ingest

	tx       pgx.Tx
	clusters map[int64]*domain.Cluster
	owners   map[uuid.UUID]int64
	// pending are objects that are not stored yet, merged by key, each agent's by itself.
	pending  map[int64]*pending
	concerns map[uuid.UUID]*concern
	ticked   map[int64]time.Time
	orphans  []postgres.OrphanSeen
	// unorphaned are Deployments that may have been orphans and are not any more.
	unorphaned []postgres.Altered
}

type pending struct {
	objects []postgres.Object
	index   map[postgres.ObjectKey]int
	// said is the last message of each object: its time and label.
	said []*Observed
}

// handleObserved takes in a batch of the stream OBSERVED, message by message in the stream's order: the result does not depend on
// where one batch ends and the next begins, but that a workspace skips the states it had in between.
func (i *Ingest) handleObserved(ctx context.Context, tx pgx.Tx, batch []cursor.Message[Observed]) error {
	if batch = heeded(batch); len(batch) == 0 {
		return nil
	}
	in := &intake{
		Ingest: i, tx: tx, pending: map[int64]*pending{}, concerns: map[uuid.UUID]*concern{}, ticked: map[int64]time.Time{},
	}
	if err := in.identify(ctx, batch); err != nil {
		return err
	}
	for m := range batch {
		if err := in.take(ctx, &batch[m]); err != nil {
			return err
		}
	}
	if err := in.storeAll(ctx); err != nil {
		return err
	}
	if err := in.wait(ctx); err != nil {
		return err
	}
	if err := i.Observations.SaveClusters(ctx, tx, in.clusters); err != nil {
		return err
	}
	if err := i.Observations.ForgetOrphans(ctx, tx, in.unorphaned); err != nil {
		return err
	}
	if err := i.Observations.TellOrphans(ctx, tx, in.orphans); err != nil {
		return err
	}
	return i.conclude(ctx, tx, in.concerns)
}

// heeded is the batch without what is ignored. The batch itself, by which the cursor moves, is left as it is.
func heeded(batch []cursor.Message[Observed]) []cursor.Message[Observed] {
	ignored := func(m cursor.Message[Observed]) bool { return m.Value.Ignored }
	if !slices.ContainsFunc(batch, ignored) {
		return batch
	}
	return slices.DeleteFunc(slices.Clone(batch), ignored)
}

// identify locks the clusters, and refuses agents that do not exist. An object that names another agent's workspace is there all the same; that workspace is not
// told of it.
func (in *intake) identify(ctx context.Context, batch []cursor.Message[Observed]) error {
	seen := map[int64]struct{}{}
	var agents []int64
	for m := range batch {
		id := batch[m].Value.AgentID
		if _, there := seen[id]; !there {
			seen[id] = struct{}{}
			agents = append(agents, id)
		}
	}
	var err error
	if in.clusters, in.owners, err = in.Observations.Identify(ctx, in.tx, agents, distinct(batch, (*Observed).workspaceID)); err != nil {
		return err
	}
	if len(in.clusters) < len(agents) {
		for m := range batch {
			if in.clusters[batch[m].Value.AgentID] == nil {
				return &cursor.DeadLetterError{Sequence: batch[m].Sequence, Err: fmt.Errorf("agent %d does not exist", batch[m].Value.AgentID)}
			}
		}
	}
	for m := range batch {
		o := &batch[m].Value
		if owner, known := in.owners[o.workspaceID()]; known && owner != o.AgentID {
			o.Object.WorkspaceID = uuid.Nil
		}
	}
	return nil
}

func (in *intake) take(ctx context.Context, m *cursor.Message[Observed]) error {
	o, cluster := &m.Value, in.clusters[m.Value.AgentID]
	if m.Stored.After(cluster.LastSeenAt) {
		cluster.LastSeenAt = m.Stored
	}
	if o.Begun != nil {
		return in.begin(ctx, o)
	}
	if cluster.UID == "" {
		cluster.UID = o.ClusterUID
	}
	if o.ClusterUID != cluster.UID {
		// Of a cluster that the agent is no longer in: the resync of the new one has begun before.
		in.Metrics.stray()
		return nil
	}
	switch {
	case o.Ended != nil:
		return in.end(ctx, o)
	case o.Tick:
		if o.At.After(cluster.TickedAt) {
			cluster.TickedAt = o.At
		}
		in.ticked[o.AgentID] = cluster.TickedAt
	default:
		in.add(o, cluster.Epoch)
	}
	return nil
}

// add merges an object with what is pending.
func (in *intake) add(o *Observed, epoch int64) {
	p := in.pending[o.AgentID]
	if p == nil {
		p = &pending{index: map[postgres.ObjectKey]int{}}
		in.pending[o.AgentID] = p
	}
	object := *o.Object
	object.Epoch = epoch
	at, there := p.index[object.Key()]
	if !there {
		p.index[object.Key()] = len(p.objects)
		p.objects, p.said = append(p.objects, object), append(p.said, o)
		return
	}
	merged := p.objects[at].Merge(object)
	if merged.Version == object.Version && merged.Deleted == object.Deleted && merged.Epoch == object.Epoch {
		p.said[at] = o
	}
	p.objects[at] = merged
}

// begin takes in the begin of a full resync. One that is known says nothing new: least of all that the agent is in that cluster now.
func (in *intake) begin(ctx context.Context, o *Observed) error {
	known, err := in.Observations.KnowsResync(ctx, in.tx, o.AgentID, o.Begun.ResyncID)
	if err != nil || known {
		return err
	}
	if err := in.store(ctx, o.AgentID); err != nil {
		return err
	}
	before := in.clusters[o.AgentID]
	highest, err := in.Observations.Highest(ctx, in.tx, o.AgentID, before.Epoch)
	if err != nil {
		return err
	}
	cluster, ask := before.Begin(*o.Begun, highest)
	if cluster.Epoch != before.Epoch {
		in.Logger.WarnContext(ctx, "the cluster of an agent was recreated or restored: a new epoch of its versions begins", "agent", o.AgentID,
			"cluster_uid", cluster.UID, "cluster_uid_before", before.UID, "epoch", cluster.Epoch)
	}
	in.clusters[o.AgentID] = &cluster
	if err := in.Observations.BeginResync(ctx, in.tx, cluster, *o.Begun); err != nil {
		return err
	}
	if !ask {
		return nil
	}
	return in.Observations.AskResync(ctx, in.tx, cluster, events.ResyncRequestCauseNewEpoch, o.At)
}

// end takes in the end of a full resync, and what is absent by it.
func (in *intake) end(ctx context.Context, o *Observed) error {
	if err := in.store(ctx, o.AgentID); err != nil {
		return err
	}
	ended, err := in.Observations.EndResync(ctx, in.tx, *in.clusters[o.AgentID], *o.Ended)
	if err != nil {
		return err
	}
	if ended.Listed.IsZero() {
		return nil
	}
	in.Metrics.resync(ended.Judged)
	if !ended.Judged {
		in.Logger.WarnContext(ctx, "a full resync did not come in whole, nothing is judged by it", "agent", o.AgentID, "resync", o.Ended.ResyncID)
		return nil
	}
	for i := range ended.Absent {
		in.altered(&ended.Absent[i], o, "")
	}
	for _, id := range ended.Missing {
		concerned(in.concerns, id, o.At).listed = ended.Listed
	}
	in.orphans = append(in.orphans, ended.Orphans...)
	return nil
}

func (in *intake) storeAll(ctx context.Context) error {
	all := &pending{}
	for _, p := range in.pending {
		all.objects, all.said = append(all.objects, p.objects...), append(all.said, p.said...)
	}
	clear(in.pending)
	return in.put(ctx, all)
}

// store stores what is pending of one agent.
func (in *intake) store(ctx context.Context, agentID int64) error {
	p := in.pending[agentID]
	delete(in.pending, agentID)
	if p == nil {
		return nil
	}
	return in.put(ctx, p)
}

func (in *intake) put(ctx context.Context, p *pending) error {
	altered, err := in.Observations.Put(ctx, in.tx, p.objects)
	if err != nil || len(altered) == 0 {
		return err
	}
	said := make(map[postgres.ObjectKey]*Observed, len(p.objects))
	for i := range p.objects {
		said[p.objects[i].Key()] = p.said[i]
	}
	for i := range altered {
		o := said[altered[i].Key]
		in.altered(&altered[i], o, o.Label)
	}
	return nil
}

// altered notes whom an object that is stored anew concerns. The label is that of the object, empty when it is absent.
func (in *intake) altered(a *postgres.Altered, o *Observed, label string) {
	for _, id := range []uuid.UUID{a.WorkspaceID, a.WorkspaceIDBefore} {
		if id == uuid.Nil {
			continue
		}
		c := concerned(in.concerns, id, o.At)
		if a.Key.Kind == postgres.KindDeployment {
			// What was there and is there again within the batch is not gone. What bears its name no longer is.
			lost := a.Deleted || id != a.WorkspaceID
			c.gone = lost && (c.gone || a.Known && !a.DeletedBefore)
		}
	}
	if a.Key.Kind != postgres.KindDeployment {
		return
	}
	in.judgeOrphan(a, o, label)
}

// judgeOrphan notes a Deployment that names no workspace of its agent, and one that was noted so and is gone, another one, or named otherwise.
func (in *intake) judgeOrphan(a *postgres.Altered, o *Observed, label string) {
	_, known := in.owners[a.WorkspaceID]
	orphan := !a.Deleted && label != "" && !known
	was, renamed := a.Known && !a.DeletedBefore, a.WorkspaceIDBefore != a.WorkspaceID
	if was && (a.Deleted || a.UIDBefore != a.UID || renamed && !orphan) {
		in.unorphaned = append(in.unorphaned, *a)
		in.orphans = slices.DeleteFunc(in.orphans, func(noted postgres.OrphanSeen) bool {
			return noted.AgentID == a.Key.AgentID && noted.UID == a.UIDBefore
		})
	}
	if orphan && (!was || a.UIDBefore != a.UID || renamed) {
		in.orphans = append(in.orphans, postgres.OrphanSeen{ClusterUID: o.ClusterUID, Orphan: domain.Orphan{
			AgentID: a.Key.AgentID, UID: a.UID, Label: label, Namespace: a.Key.Namespace, Name: a.Key.Name, SeenAt: o.At,
		}})
		in.Metrics.orphan()
	}
}

// wait concerns the workspaces whose time has come by the ticks of the batch.
func (in *intake) wait(ctx context.Context) error {
	if len(in.ticked) == 0 {
		return nil
	}
	due, err := in.Observations.Due(ctx, in.tx, in.ticked)
	if err != nil {
		return err
	}
	for _, id := range due {
		concerned(in.concerns, id, time.Time{}) // the clock is the time of it
	}
	return nil
}
