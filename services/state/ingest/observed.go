package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/orphan"
)

// Observed is a decoded event of OBSERVED: an object, a tick, or the begin or end of a full resync.
type Observed struct {
	// forDeploys is true for events that only the deploys service reads.
	forDeploys bool

	Sequence uint64
	// Stored is when the stream stored the message.
	Stored time.Time

	AgentID    int64
	ClusterUID string
	// At is the agent's time. StoredIn bounds it.
	At time.Time
	// ReportedAt is the agent's time as it was reported.
	ReportedAt time.Time
	// Object is set for object events only. Its Epoch stays 0: add sets it in a copy.
	Object *Object
	// Label names the object's workspace. It may be any text.
	Label string
	// Begun and Ended are nil for other reports.
	Begun *events.ObservedResyncBegun
	Ended *events.ObservedResyncEnded
	Tick  bool
}

// StoredIn sets where and when the stream stored the event, and bounds the agent's time by it.
func (o *Observed) StoredIn(sequence uint64, stored time.Time) {
	o.Sequence, o.Stored, o.ReportedAt = sequence, stored, o.At
	o.At = event.AgentTime(o.At, stored)
	if o.Begun != nil {
		o.Begun.ObservedAt = o.At
	}
	if o.Ended != nil {
		o.Ended.ObservedAt = o.At
	}
}

func (o *Observed) workspaceID() uuid.UUID {
	if o.Object == nil {
		return uuid.Nil
	}
	return o.Object.WorkspaceID
}

// observedBatch is one batch of OBSERVED in its transaction.
type observedBatch struct {
	*Ingest

	LockedAgents

	store Store
	// pending are the objects of each agent that are not stored yet, one version per key.
	pending map[int64]*pendingObjects
	changes changesByWorkspace
	// ticked has the storage time of the last tick of each agent.
	ticked map[int64]time.Time
	// orphans are new orphans. resolved are changed Deployments that are no longer orphans.
	orphans  []FoundOrphan
	resolved []ObjectChange
}

type pendingObjects struct {
	objects []Object
	index   map[ObjectKey]int
	// reports has the last report of each object, with the same index as objects.
	reports []*Observed
}

// HandleObserved processes a batch of OBSERVED, message by message in the stream's order.
func (i *Ingest) HandleObserved(ctx context.Context, s Store, messages []*Observed) error {
	b := i.newObservedBatch(s)
	if err := b.lockAgents(ctx, messages); err != nil {
		return err
	}
	for _, o := range messages {
		if err := b.process(ctx, o); err != nil {
			return err
		}
	}
	if err := b.storeAll(ctx); err != nil {
		return err
	}
	if err := b.addDue(ctx); err != nil {
		return err
	}
	if err := s.SaveClusters(ctx, b.Clusters); err != nil {
		return err
	}
	return b.storeChanges(ctx)
}

func (i *Ingest) newObservedBatch(s Store) *observedBatch {
	return &observedBatch{
		Ingest:  i,
		store:   s,
		pending: map[int64]*pendingObjects{},
		changes: changesByWorkspace{},
		ticked:  map[int64]time.Time{},
	}
}

// storeChanges stores the changes of orphans and recomputes the changed workspaces.
func (b *observedBatch) storeChanges(ctx context.Context) error {
	if err := b.store.DeleteOrphans(ctx, b.resolved); err != nil {
		return err
	}
	if err := b.insertOrphans(ctx); err != nil {
		return err
	}
	return b.recompute(ctx, b.store, b.changes, b.ticked)
}

// lockAgents locks the agents and rejects messages of unknown ones. An object that names another agent's
// workspace is stored without a workspace.
func (b *observedBatch) lockAgents(ctx context.Context, messages []*Observed) error {
	seen := map[int64]struct{}{}
	var agents []int64
	ids := make([]uuid.UUID, len(messages))
	for m, o := range messages {
		ids[m] = o.workspaceID()
		if _, known := seen[o.AgentID]; !known {
			seen[o.AgentID] = struct{}{}
			agents = append(agents, o.AgentID)
		}
	}
	var err error
	if b.LockedAgents, err = b.store.LockAgents(ctx, agents, distinct(ids)); err != nil {
		return err
	}
	for _, o := range messages {
		if b.Clusters[o.AgentID] == nil {
			return &UnprocessableError{o.Sequence, fmt.Errorf("agent %d does not exist", o.AgentID)}
		}
		if agentID, known := b.WorkspaceAgents[o.workspaceID()]; known && agentID != o.AgentID {
			o.Object.WorkspaceID = uuid.Nil
		}
	}
	return nil
}

func (b *observedBatch) process(ctx context.Context, o *Observed) error {
	cluster := b.Clusters[o.AgentID]
	if o.Stored.After(cluster.LastSeenAt) {
		cluster.LastSeenAt = o.Stored
	}
	if o.Begun != nil {
		return b.beginResync(ctx, o)
	}
	if cluster.UID == "" {
		cluster.UID = o.ClusterUID
	}
	if o.ClusterUID != cluster.UID {
		// An event of another cluster: a late one of the previous cluster, or one of the new cluster before its begin
		// event.
		b.Metrics.droppedStale()
		return nil
	}
	switch {
	case o.Ended != nil:
		return b.endResync(ctx, o)
	case o.Tick:
		b.tick(ctx, cluster, o)
	default:
		if ended, isEnded := b.Ended[o.AgentID]; isEnded && ended.covers(o.Object) {
			if err := b.judge(ctx, o.AgentID); err != nil {
				return err
			}
		}
		b.add(o, cluster.Epoch)
	}
	return nil
}

func (b *observedBatch) tick(ctx context.Context, cluster *agent.Cluster, o *Observed) {
	var jumped bool
	*cluster, jumped = cluster.Tick(o.ReportedAt, o.Stored)
	b.ticked[o.AgentID] = o.Stored
	if jumped {
		b.Metrics.clockJumped()
		b.Logger.WarnContext(ctx, "the clock of an agent jumped; policies use the clock of the stream",
			slog.Int64(logkey.AgentID, o.AgentID), slog.Duration(logkey.ClockOffset, cluster.ClockOffset))
	}
}

// add merges an object with its pending version.
func (b *observedBatch) add(o *Observed, epoch int64) {
	p := b.pending[o.AgentID]
	if p == nil {
		p = &pendingObjects{index: map[ObjectKey]int{}}
		b.pending[o.AgentID] = p
	}
	object := *o.Object
	object.Epoch = epoch
	at, known := p.index[object.Key()]
	if !known {
		p.index[object.Key()] = len(p.objects)
		p.objects, p.reports = append(p.objects, object), append(p.reports, o)
		return
	}
	merged := p.objects[at].Merge(object)
	if merged.sameVersion(&object) {
		p.reports[at] = o
	}
	p.objects[at] = merged
}

// beginResync judges the previous full resync of the agent if it has ended, and starts the next one. A duplicate begin
// event is ignored.
func (b *observedBatch) beginResync(ctx context.Context, o *Observed) error {
	exists, err := b.store.ResyncExists(ctx, o.AgentID, o.Begun.ResyncID)
	if err != nil || exists {
		return err
	}
	if err := b.storeAgent(ctx, o.AgentID); err != nil {
		return err
	}
	if err := b.judge(ctx, o.AgentID); err != nil {
		return err
	}
	before := *b.Clusters[o.AgentID]
	cluster, maybeRestored := before.BeginResync(*o.Begun)
	if cluster.Epoch != before.Epoch {
		b.Logger.WarnContext(ctx, "began a new epoch: the agent's cluster was recreated or restored",
			slog.Int64(logkey.AgentID, o.AgentID), slog.String(logkey.ClusterUID, cluster.UID),
			slog.String(logkey.PreviousClusterUID, before.UID), slog.Int64(logkey.Epoch, cluster.Epoch))
	}
	b.Clusters[o.AgentID] = &cluster
	if err := b.store.BeginResync(ctx, cluster, *o.Begun); err != nil || !maybeRestored {
		return err
	}
	highest, err := b.store.HighestVersions(ctx, before)
	if err != nil || !agent.IsBelow(*o.Begun, highest) {
		return err
	}
	_, err = b.requestResync(ctx, b.store, o.AgentID, highest, events.ResyncRequestCauseNewEpoch, o.At)
	return err
}

// endResync records that a full resync has ended. Package judge judges it later, a rebuild at once.
func (b *observedBatch) endResync(ctx context.Context, o *Observed) error {
	if err := b.storeAgent(ctx, o.AgentID); err != nil {
		return err
	}
	ended, err := b.store.EndResync(ctx, *b.Clusters[o.AgentID], *o.Ended)
	if err != nil || ended == nil {
		return err
	}
	b.Ended[o.AgentID] = *ended
	if b.ReadModelOnly {
		return b.judge(ctx, o.AgentID)
	}
	return nil
}

// storeAll stores all pending objects.
func (b *observedBatch) storeAll(ctx context.Context) error {
	all := &pendingObjects{}
	for _, p := range b.pending {
		all.objects, all.reports = append(all.objects, p.objects...), append(all.reports, p.reports...)
	}
	clear(b.pending)
	return b.put(ctx, all)
}

// storeAgent stores the pending objects of one agent.
func (b *observedBatch) storeAgent(ctx context.Context, agentID int64) error {
	p := b.pending[agentID]
	delete(b.pending, agentID)
	if p == nil {
		return nil
	}
	return b.put(ctx, p)
}

func (b *observedBatch) put(ctx context.Context, p *pendingObjects) error {
	if err := b.refuseNew(ctx, p); err != nil || len(p.objects) == 0 {
		return err
	}
	changes, err := b.store.PutObjects(ctx, p.objects)
	if err != nil || len(changes) == 0 {
		return err
	}
	reports := make(map[ObjectKey]*Observed, len(p.objects))
	for i := range p.objects {
		reports[p.objects[i].Key()] = p.reports[i]
	}
	for i := range changes {
		o := reports[changes[i].Key]
		b.objectChanged(&changes[i], o, o.Label)
	}
	return nil
}

// refuseNew removes new objects of agents that have as many as they may have. So the tables of an agent are bounded,
// whatever it reports. The result depends only on the messages before.
func (b *observedBatch) refuseNew(ctx context.Context, p *pendingObjects) error {
	byAgent := map[int64][]int{}
	for i := range p.objects {
		byAgent[p.objects[i].AgentID] = append(byAgent[p.objects[i].AgentID], i)
	}
	refused := map[int]bool{}
	for id, indexes := range byAgent {
		b.Clusters[id].Objects += int64(len(indexes))
		if b.Clusters[id].Objects <= b.maxObjects() {
			continue
		}
		if err := b.refuseNewOf(ctx, id, p, indexes, refused); err != nil {
			return err
		}
	}
	if len(refused) == 0 {
		return nil
	}
	left := &pendingObjects{}
	for i := range p.objects {
		if !refused[i] {
			left.objects, left.reports = append(left.objects, p.objects[i]), append(left.reports, p.reports[i])
		}
	}
	*p = *left
	return nil
}

// refuseNewOf adds the indexes of the objects of one agent that are refused.
func (b *observedBatch) refuseNewOf(
	ctx context.Context, agentID int64, p *pendingObjects, indexes []int, refused map[int]bool,
) error {
	// A judgement removes deleted objects. A rebuild has judged by now.
	if err := b.judge(ctx, agentID); err != nil {
		return err
	}
	objects, workspaces, err := b.store.CountObjects(ctx, agentID, p.reports[indexes[0]].Stored)
	if err != nil {
		return err
	}
	keys := make([]ObjectKey, len(indexes))
	for n, i := range indexes {
		keys[n] = p.objects[i].Key()
	}
	stored, err := b.store.StoredObjects(ctx, keys)
	if err != nil {
		return err
	}
	count, limit := int64(0), b.maxObjects()+workspaces
	for n, i := range indexes {
		switch {
		case stored[keys[n]]:
		case objects < limit:
			objects++
		default:
			refused[i] = true
			count++
		}
	}
	b.Clusters[agentID].Objects = objects
	if count == 0 {
		return nil
	}
	b.Metrics.refusedObjects(count)
	b.Logger.WarnContext(ctx, "refused new objects of an agent: it has as many as it may have",
		slog.Int64(logkey.AgentID, agentID), slog.Int64(logkey.Count, count), slog.Int64(logkey.Limit, limit))
	return nil
}

func (b *observedBatch) maxObjects() int64 {
	if b.MaxObjects == 0 {
		return agent.MaxObjects
	}
	return b.MaxObjects
}

// objectChanged records the workspaces that are affected by a changed object. label is the workspace label; it is
// empty if the object is absent.
func (b *observedBatch) objectChanged(c *ObjectChange, o *Observed, label string) {
	for _, id := range []uuid.UUID{c.WorkspaceID, c.WorkspaceIDBefore} {
		if id == uuid.Nil {
			continue
		}
		changes := b.changes.get(id, o.At)
		if c.Key.Kind == KindDeployment {
			// A Deployment that was deleted and recreated in one batch is not gone. A Deployment that now has another
			// workspace label is gone.
			lost := c.Deleted || id != c.WorkspaceID
			changes.deploymentDeleted = lost && (changes.deploymentDeleted || c.Existed && !c.DeletedBefore)
		}
	}
	if c.Key.Kind == KindDeployment {
		b.findOrphan(c, o, label)
	}
}

// findOrphan records new orphans, and Deployments that are no longer orphans because they were deleted, recreated
// or relabeled.
func (b *observedBatch) findOrphan(c *ObjectChange, o *Observed, label string) {
	_, known := b.WorkspaceAgents[c.WorkspaceID]
	isOrphan := !c.Deleted && label != "" && !known
	existed, relabelled := c.Existed && !c.DeletedBefore, c.WorkspaceIDBefore != c.WorkspaceID
	if existed && (c.Deleted || c.UIDBefore != c.UID || relabelled && !isOrphan) {
		b.resolved = append(b.resolved, *c)
		b.orphans = slices.DeleteFunc(b.orphans, func(found FoundOrphan) bool {
			return found.AgentID == c.Key.AgentID && found.UID == c.UIDBefore
		})
	}
	if isOrphan && (!existed || c.UIDBefore != c.UID || relabelled) {
		b.orphans = append(b.orphans, FoundOrphan{ClusterUID: o.ClusterUID, Orphan: orphan.Orphan{
			AgentID: c.Key.AgentID, UID: c.UID, Label: label, Namespace: c.Key.Namespace, Name: c.Key.Name, SeenAt: o.At,
		}})
		b.Metrics.orphanFound()
	}
}

// insertOrphans stores the new orphans and publishes each once.
func (b *observedBatch) insertOrphans(ctx context.Context) error {
	inserted, err := b.store.InsertOrphans(ctx, b.orphans)
	if err != nil || b.ReadModelOnly {
		return err
	}
	messages := make([]*nats.Msg, len(inserted))
	for n, o := range inserted {
		if messages[n], err = b.Encoder.FoundOrphan(ctx, o.Orphan, o.ClusterUID); err != nil {
			return err
		}
	}
	return b.store.InsertMessages(ctx, messages...)
}

// addDue adds the workspaces with a deadline that the batch's ticks have reached.
func (b *observedBatch) addDue(ctx context.Context) error {
	if len(b.ticked) == 0 {
		return nil
	}
	clocks := make(map[int64]time.Time, len(b.ticked))
	for id, stored := range b.ticked {
		clocks[id] = stored
		if agentClock := b.Clusters[id].TickedAt; agentClock.After(stored) {
			clocks[id] = agentClock
		}
	}
	due, err := b.store.DueWorkspaces(ctx, clocks)
	if err != nil {
		return err
	}
	for _, id := range due {
		b.changes.get(id, time.Time{}) // decide then uses the agent's clock as the time of the event
	}
	return nil
}
