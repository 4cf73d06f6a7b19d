package ingest

import (
	"context"
	"log/slog"
	"maps"

	"github.com/google/uuid"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/publish"
	"lockstep.internal/services/deploys/rollout"
)

// batch is the batch that is being processed.
type batch struct {
	*Processor

	store     Store
	agents    *agents.Registry
	claims    *ownership.Claims
	workloads *records[rollout.State]
	// environments are those that the batch needs.
	environments *records[environment.State]
	// steps are the inputs of environments, in order.
	steps   []step
	members map[Member]struct{}
	// refused counts the refused rows of each agent.
	refused map[int64]int
	// traceParent of the current message.
	traceParent string
}

// step is an input of one environment, or a tick for all due environments if change is nil.
type step struct {
	change      *environment.Change
	traceParent string

	authority agents.Authority
	tick      environment.Input
}

// apply applies an admitted message.
func (b *batch) apply(ctx context.Context, o *observation.Observation) error {
	b.traceParent = o.TraceParent
	if o.ResyncBegun != nil {
		return b.beginResync(ctx, o)
	}
	if o.ClusterReleased != nil {
		return b.release(ctx, o)
	}
	a, inCluster := b.agents.Sender(o)
	if !inCluster {
		b.metrics.PreviousCluster() // the full resync of its new cluster has begun
		return nil
	}
	switch {
	case o.ResyncEnded != nil:
		return b.endResync(ctx, o)
	case o.Tick:
		b.tick(a, o)
	default:
		b.observe(a, o)
	}
	return nil
}

// observe applies the observation of an object.
func (b *batch) observe(a *agents.Agent, o *observation.Observation) {
	if a.IsMember(o) {
		m := Member{AgentID: a.ID, Object: o.MemberKey()}
		if o.Revision == nil {
			m.WorkloadID = o.ID
		}
		if b.addRow(a.ID, memberRows) {
			b.members[m] = struct{}{}
		}
	}
	if o.Rejected != nil {
		return
	}
	w := b.workloads.touch(o.ID, rollout.New(o.Key))
	input := b.agents.Input(a, o.ObservedAt)
	input.Workload, input.Revision, input.Pods = o.Workload, o.Revision, o.Pods
	b.advance(w, input)
}

// advance applies one input to a workload.
func (b *batch) advance(w *entry[rollout.State], input rollout.Input) {
	before := w.State
	after, facts := rollout.Advance(before, input)
	isNew := after.Serial != before.Serial && !w.Stored && !w.changed
	if isNew && !b.addRow(input.AgentID, workloadRows) {
		return
	}
	w.State = after
	if after.Serial != before.Serial {
		w.changed = true
		w.AgentID = agents.Reporter(after.AgentID, input.AgentID)
	}
	w.addFacts(facts, b.traceParent)
	for i := range facts {
		b.metrics.Fact(&facts[i])
	}
	for _, change := range b.environmentRules.Changes(before, after) {
		b.steps = append(b.steps, step{change: &change, traceParent: b.traceParent})
	}
}

// tick advances the agent's clock and applies it to all workloads and environments that are due.
func (b *batch) tick(a *agents.Agent, o *observation.Observation) {
	authority, advanced := b.agents.Tick(a, o.ObservedAt)
	if !advanced {
		return
	}
	due := b.workloads.match(func(w *Record[rollout.State]) bool {
		return authority.Due(w.State.Key.ClusterUID, w.AgentID, w.State.Wake())
	})
	for _, w := range due {
		b.advance(w, b.agents.Input(a, o.ObservedAt))
	}
	b.steps = append(b.steps, step{
		authority: authority, tick: environment.Input{AgentID: a.ID, ObservedAt: o.ObservedAt},
	})
}

// applySteps applies the steps to environments. It runs after all messages are applied, so that one query loads all
// environments.
func (b *batch) applySteps(ctx context.Context) error {
	if err := b.loadEnvironments(ctx); err != nil {
		return err
	}
	for i := range b.steps {
		s := &b.steps[i]
		if s.change != nil {
			g := b.environments.touch(environmentID(s.change.Key), environment.New(s.change.Key))
			b.advanceEnvironment(g, s.change.Input, s.traceParent)
			continue
		}
		due := b.environments.match(func(g *Record[environment.State]) bool {
			return s.authority.Due(g.State.Key.ClusterUID, g.AgentID, g.State.Wake())
		})
		for _, g := range due {
			b.advanceEnvironment(g, s.tick, "")
		}
	}
	return nil
}

func environmentID(key environment.Key) uuid.UUID {
	return observation.NewID(key.ClusterUID, key.Namespace, environment.Kind, key.Name)
}

func (b *batch) loadEnvironments(ctx context.Context) error {
	var missing []uuid.UUID
	requested := map[uuid.UUID]bool{}
	for i := range b.steps {
		if b.steps[i].change == nil {
			continue
		}
		id := environmentID(b.steps[i].change.Key)
		if !requested[id] && !b.environments.has(id) {
			missing = append(missing, id)
		}
		requested[id] = true
	}
	if len(missing) == 0 {
		return nil
	}
	loaded, err := b.store.Load(ctx, Query{EnvironmentIDs: missing})
	b.environments.load(loaded.Environments)
	return err
}

func (b *batch) advanceEnvironment(g *entry[environment.State], input environment.Input, traceParent string) {
	before := g.State
	after, facts := b.environmentRules.Advance(before, input)
	isNew := after.Serial != before.Serial && !g.Stored && !g.changed
	if isNew && !b.addRow(input.AgentID, environmentRows) {
		return
	}
	g.State = after
	if after.Serial != before.Serial {
		g.changed = true
		g.AgentID = agents.Reporter(after.AgentID, input.AgentID)
	}
	g.addFacts(facts, traceParent)
	for i := range facts {
		b.metrics.Fact(&facts[i])
	}
}

// release drops the state of all workloads of a cluster that was released to another project.
func (b *batch) release(ctx context.Context, o *observation.Observation) error {
	b.agents.ReleaseCluster(o.ClusterUID)
	stored, err := b.store.ClusterWorkloads(ctx, o.ClusterUID)
	if err != nil {
		return err
	}
	b.workloads.load(stored)
	workloads, endedRollouts := 0, 0
	affected := b.workloads.match(func(w *Record[rollout.State]) bool { return w.State.Key.ClusterUID == o.ClusterUID })
	for _, w := range affected {
		if w.State.Present() {
			workloads++
		}
		if w.State.InFlight() {
			endedRollouts++
		}
		b.advance(w, rollout.Input{AgentID: w.AgentID, ObservedAt: o.ObservedAt, Released: true})
	}
	b.metrics.Release()
	r := o.ClusterReleased
	b.logger.InfoContext(ctx, "released a cluster", slog.String(logkey.ClusterUID, o.ClusterUID),
		slog.Int(logkey.ProjectID, r.ProjectID), slog.Int(logkey.ToProjectID, r.ToProjectID),
		slog.Int(logkey.UserID, r.UserID), slog.String(logkey.Reason, r.Reason),
		slog.Int(logkey.Workloads, workloads), slog.Int(logkey.EndedRollouts, endedRollouts))
	return nil
}

// publish publishes the facts: first those of workloads, then those of environments. It returns the positions of older
// facts that were republished, by fact id.
func (b *batch) publish(ctx context.Context) (map[string]int64, error) {
	if b.publisher == nil {
		return nil, nil //nolint:nilnil // without a publisher, no fact is republished
	}
	first, second := b.workloads.queues(), b.environments.queues()
	if err := b.skipKnownFacts(ctx); err != nil {
		return nil, err
	}
	positions := map[string]int64{}
	for i, queues := range [][]*publish.Queue{first, second} {
		if i > 0 && len(queues) == 0 {
			continue
		}
		republished, err := b.publisher.Publish(ctx, b.store, queues)
		if err != nil {
			return nil, err
		}
		maps.Copy(positions, republished)
	}
	for _, w := range b.workloads.order {
		if w.queue != nil {
			w.Position = w.queue.Position
			w.State.Sequence += w.queue.Shift
		}
	}
	for _, g := range b.environments.order {
		if g.queue != nil {
			g.Position = g.queue.Position
			g.State.Sequence += g.queue.Shift
		}
	}
	return positions, nil
}

// skipKnownFacts skips the facts that the database has although it lacks the state of their workload. These facts were
// published before, and the stream may no longer have them.
func (b *batch) skipKnownFacts(ctx context.Context) error {
	unstored := map[uuid.UUID]*publish.Queue{}
	for _, w := range b.workloads.order {
		if !w.Stored && w.queue != nil {
			unstored[w.ID] = w.queue
		}
	}
	for _, g := range b.environments.order {
		if !g.Stored && g.queue != nil {
			unstored[g.ID] = g.queue
		}
	}
	if len(unstored) == 0 {
		return nil
	}
	var ids []string
	var workloads []uuid.UUID
	for id, q := range unstored {
		workloads = append(workloads, id)
		for _, f := range q.Facts() {
			ids = append(ids, f.ID())
		}
	}
	known, newest, err := b.store.KnownFacts(ctx, ids, workloads)
	if err != nil {
		return err
	}
	for id, q := range unstored {
		if sequence, published := newest[id]; published {
			q.SkipKnown(known, sequence)
		}
	}
	return nil
}

// changes returns all rows that the batch writes.
func (b *batch) changes() *Changes {
	c := &Changes{Agents: b.agents.Changed()}
	for m := range b.members {
		c.Members = append(c.Members, m)
	}
	for _, w := range b.workloads.order {
		if w.changed {
			c.Workloads = append(c.Workloads, w.Record)
			b.addFacts(c, w.ID, w.facts)
		}
	}
	for _, g := range b.environments.order {
		if g.changed {
			c.Environments = append(c.Environments, g.Record)
			b.addFacts(c, g.ID, g.facts)
		}
	}
	c.Reporters, c.Claims = b.claims.New()
	return c
}

// addFacts adds the new facts of a workload, and the changes of the history that they cause.
func (b *batch) addFacts(c *Changes, id uuid.UUID, facts []*publish.Fact) {
	var added []*events.DeployFact
	for _, f := range facts {
		if !f.Known {
			c.Facts = append(c.Facts, f)
			added = append(added, &f.DeployFact)
		}
	}
	c.Rollouts = append(c.Rollouts, b.history.Changes(id.String(), added)...)
}

// commit copies the changes into the cache. If the caller rolls the transaction back, the number of the next batch
// reveals it.
func (b *batch) commit() {
	b.agents.Commit()
	b.claims.Commit()
	commitRecords(b.workloads, &b.cache.workloads)
	commitRecords(b.environments, &b.cache.environments)
}

func commitRecords[S any](r *records[S], cached *recordCache[S]) {
	for _, e := range r.order {
		if e.Stored = e.Stored || e.changed; e.Stored {
			cached.put(e.Record)
		}
	}
}
