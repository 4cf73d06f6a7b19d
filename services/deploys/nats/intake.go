package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/services/deploys/roster"
)

// intake is one batch on its way.
type intake struct {
	*Ingest

	tx pgx.Tx
	// roster of the agents, with what the batch says of them.
	roster *roster.Roster
	// loaded is what was read for this batch and is not in memory.
	loaded    map[uuid.UUID]entry[rollout.State]
	loadedEnv map[uuid.UUID]entry[environment.State]
	work      map[uuid.UUID]*workload
	order     []*workload
	env       map[uuid.UUID]*group
	envOrder  []*group
	// steps are what happens to environments, in order.
	steps   []step
	members map[postgres.Member]struct{}
	// acknowledged facts are not written yet, nor is what finished chains are of.
	acknowledged []written
	finished     []*chain
	scribe       scribe
	// located are facts of earlier batches that were told again, and where they are now.
	located map[string]int64
	// claims, with those that the batch makes.
	claims *roster.Claims
	// trace of the message being taken.
	trace string
}

// workload is a workload that the batch concerns.
type workload struct {
	entry[rollout.State]

	id    uuid.UUID
	key   rollout.Key
	facts []*telling
	// changed is that its state is another one than is stored, written that this batch has written it.
	changed, written bool
}

// begin reads what the batch needs.
func (i *Ingest) begin(ctx context.Context, tx pgx.Tx, batch []cursor.Message[Observed]) (*intake, error) {
	in := &intake{
		Ingest: i, tx: tx, located: map[string]int64{},
		loaded: map[uuid.UUID]entry[rollout.State]{}, loadedEnv: map[uuid.UUID]entry[environment.State]{},
		work: map[uuid.UUID]*workload{}, env: map[uuid.UUID]*group{}, members: map[postgres.Member]struct{}{},
	}
	reading, err := i.Store.Begin(ctx, tx, i.ask(batch))
	if err != nil {
		return nil, err
	}
	batches := reading.Batches
	if i.known.batches != 0 && batches != i.known.batches+1 {
		// Somebody else has written, or the last batch was not committed.
		i.known.forget()
		if reading, err = i.Store.Read(ctx, tx, i.ask(batch)); err != nil {
			return nil, err
		}
	}
	i.known.batches = batches
	for _, a := range reading.Agents {
		i.known.agents[a.ID] = a
	}
	in.roster = roster.New(i.known.agents)
	i.known.learn(&reading)
	in.claims = roster.NewClaims(i.reading(), i.known.reporters, i.known.claims)
	if err := in.admit(ctx, batch); err != nil {
		i.known.undone()
		return nil, err
	}
	if err := load(reading.Workloads, in.loaded); err != nil {
		return nil, err
	}
	return in, load(reading.Environments, in.loadedEnv)
}

// ask is what a batch needs that is not in memory.
func (i *Ingest) ask(batch []cursor.Message[Observed]) postgres.Ask {
	ask := postgres.Ask{Agents: i.known.batches == 0}
	seen := make(map[uuid.UUID]struct{}, len(batch))
	clusters := map[string]struct{}{}
	for m := range batch {
		o := &batch[m].Value
		i.askClaims(&ask, o)
		if o.Tick {
			if _, there := clusters[o.ClusterUID]; !there {
				clusters[o.ClusterUID] = struct{}{}
				ask.Clusters = append(ask.Clusters, o.ClusterUID)
			}
			if o.At.After(ask.Until) {
				ask.Until = o.At
			}
			continue
		}
		if o.Workload == nil && o.Revision == nil {
			continue
		}
		if _, there := seen[o.ID]; there {
			continue
		}
		seen[o.ID] = struct{}{}
		if _, there := i.known.workloads.entries[o.ID]; !there {
			ask.Workloads = append(ask.Workloads, o.ID)
		}
	}
	return ask
}

// take takes in one message.
func (in *intake) take(ctx context.Context, m *cursor.Message[Observed]) error {
	o := &m.Value
	if o.ClusterUID == "" {
		return nil // of no concern
	}
	in.trace = o.Trace
	if o.Begun != nil {
		return in.beginResync(ctx, o)
	}
	if o.Released != nil {
		return in.release(ctx, o)
	}
	a, ours := in.roster.Hear(o)
	if !ours {
		// Of a cluster that the agent is no longer in: the full resync of the new one has begun before.
		in.Metrics.stray()
		return nil
	}
	switch {
	case o.Ended != nil:
		return in.endResync(ctx, o)
	case o.Tick:
		in.tick(a, o)
	default:
		in.observe(a, o)
	}
	return nil
}

// observe takes in an object.
func (in *intake) observe(a *roster.Agent, o *Observed) {
	if a.Member(o) {
		m := postgres.Member{AgentID: a.ID, Object: o.Member()}
		if o.Revision == nil {
			m.Workload = o.ID
		}
		in.members[m] = struct{}{}
	}
	if o.Rejected != nil {
		return
	}
	w := in.workload(o.ID, o.Key)
	input := in.roster.Input(a, o.At)
	input.Workload, input.Revision = o.Workload, o.Revision
	in.advance(w, input)
}

// workload gives what the batch knows of a workload so far.
func (in *intake) workload(id uuid.UUID, key rollout.Key) *workload {
	if w := in.work[id]; w != nil {
		return w
	}
	w := &workload{id: id, key: key}
	if known, there := in.known.workloads.entries[id]; there {
		w.entry = known
	} else if read, there := in.loaded[id]; there {
		w.entry = read
	} else {
		w.state = rollout.New(key)
	}
	in.work[id] = w
	in.order = append(in.order, w)
	return w
}

// advance takes one input into account.
func (in *intake) advance(w *workload, input rollout.Input) {
	before := w.state
	after, facts := rollout.Advance(before, input)
	w.state = after
	if after.Serial != before.Serial {
		w.changed = true
		w.agentID = roster.Teller(after.AgentID, input.AgentID)
	}
	for i := range facts {
		w.facts = append(w.facts, &telling{fact: facts[i], trace: in.trace})
		in.Metrics.fact(&facts[i])
	}
	for _, change := range in.Environments.Changes(before, after) {
		in.steps = append(in.steps, step{change: &change, trace: in.trace})
	}
}

// tick takes in the time.
func (in *intake) tick(a *roster.Agent, o *Observed) {
	word, goes := in.roster.Tick(a, o.At)
	if !goes {
		return
	}
	for _, w := range in.due(word) {
		in.advance(w, in.roster.Input(a, o.At))
	}
	in.steps = append(in.steps, step{word: word, input: environment.Input{AgentID: a.ID, ObservedAt: o.At}})
}

// due are the workloads that a tick matters to, in a fixed order.
func (in *intake) due(word roster.Word) []*workload {
	var due []*workload
	concerns := func(e *entry[rollout.State]) bool {
		return word.Wakes(e.state.Key.ClusterUID, e.agentID, e.state.Wake())
	}
	for _, w := range in.work {
		if concerns(&w.entry) {
			due = append(due, w)
		}
	}
	for id, read := range in.loaded {
		if in.work[id] == nil && concerns(&read) {
			due = append(due, in.workload(id, read.state.Key))
		}
	}
	slices.SortFunc(due, func(a, b *workload) int { return slices.Compare(a.id[:], b.id[:]) })
	return due
}

// record is the workload as it is to be stored.
func (w *workload) record() (postgres.Record, error) {
	raw, err := json.Marshal(w.state)
	if err != nil {
		return postgres.Record{}, fmt.Errorf("write the state of %s: %w", w.key, err)
	}
	return postgres.Record{
		ID: w.id, ClusterUID: w.key.ClusterUID, AgentID: w.agentID, Present: w.state.Present(), WakeAt: w.state.Wake(), State: string(raw), Told: w.told,
	}, nil
}

// store writes everything that the batch brought about.
func (in *intake) store(ctx context.Context) error {
	writing := postgres.Writing{Agents: in.roster.Changed()}
	for m := range in.members {
		writing.Members = append(writing.Members, m)
	}
	for _, w := range in.order {
		if err := in.storeWorkload(&writing, w); err != nil {
			return err
		}
	}
	for _, g := range in.envOrder {
		if err := in.storeGroup(&writing, g); err != nil {
			return err
		}
	}
	if reporters, claims := in.claims.Added(); len(reporters)+len(claims) > 0 {
		if err := in.Store.Claim(ctx, in.tx, reporters, claims); err != nil {
			return err
		}
	}
	if len(in.located) > 0 {
		if err := in.Store.Locate(ctx, in.tx, in.located); err != nil {
			return err
		}
	}
	return in.Store.Save(ctx, in.tx, writing)
}

// storeWorkload adds a workload to what is written, once.
func (in *intake) storeWorkload(writing *postgres.Writing, w *workload) error {
	if !w.changed || w.written {
		return nil
	}
	w.written = true
	record, err := w.record()
	if err != nil {
		return err
	}
	writing.Workloads = append(writing.Workloads, record)
	return in.chronicle(writing, w.id, w.facts)
}

// chronicle adds facts, and the rows of the history that they change.
func (in *intake) chronicle(writing *postgres.Writing, id uuid.UUID, tellings []*telling) error {
	facts := make([]events.DeployFact, 0, len(tellings))
	for _, t := range tellings {
		if t.known {
			continue
		}
		facts = append(facts, t.fact)
		if t.stored {
			continue
		}
		row, err := t.row(in.Cell, id)
		if err != nil {
			return err
		}
		writing.Facts = append(writing.Facts, row)
	}
	writing.Rollouts = append(writing.Rollouts, in.History.Changes(id.String(), facts)...)
	return nil
}

// remember takes over what is written now. Should the transaction not be committed, the number of batches tells.
func (in *intake) remember() {
	in.roster.Keep()
	in.claims.Keep()
	for _, w := range in.order {
		w.stored = w.stored || w.changed
		if w.stored {
			in.known.workloads.put(w.id, w.entry)
		}
	}
	for _, g := range in.envOrder {
		g.stored = g.stored || g.changed
		if g.stored {
			in.known.environments.put(g.id, g.entry)
		}
	}
}
