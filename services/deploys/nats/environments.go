package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/roster"
)

// step is what happens to environments: news of a member, or, when change is nil, a tick.
type step struct {
	change *environment.Change
	trace  string

	word  roster.Word
	input environment.Input
}

// group is an environment that the batch concerns.
type group struct {
	entry[environment.State]

	id               uuid.UUID
	key              environment.Key
	facts            []*telling
	changed, written bool
}

func groupID(key environment.Key) uuid.UUID {
	return observed.Identify(key.ClusterUID, key.Namespace, environment.Kind, key.Name)
}

// conclude takes the steps that environments make, in their order.
func (in *intake) conclude(ctx context.Context) error {
	if err := in.loadGroups(ctx); err != nil {
		return err
	}
	for i := range in.steps {
		s := &in.steps[i]
		if s.change != nil {
			in.advanceGroup(in.group(s.change.Key), s.change.Input, s.trace)
			continue
		}
		for _, g := range in.dueGroups(s) {
			in.advanceGroup(g, s.input, "")
		}
	}
	return nil
}

// loadGroups reads the environments that are not in memory.
func (in *intake) loadGroups(ctx context.Context) error {
	var missing []uuid.UUID
	for i := range in.steps {
		if in.steps[i].change == nil {
			continue
		}
		id := groupID(in.steps[i].change.Key)
		_, inMemory := in.known.environments.entries[id]
		_, loaded := in.loadedEnv[id]
		if !inMemory && !loaded && !slices.Contains(missing, id) {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	reading, err := in.Store.Read(ctx, in.tx, postgres.Ask{Environments: missing})
	if err != nil {
		return err
	}
	return load(reading.Environments, in.loadedEnv)
}

// group gives what the batch knows of an environment so far.
func (in *intake) group(key environment.Key) *group {
	id := groupID(key)
	if g := in.env[id]; g != nil {
		return g
	}
	g := &group{id: id, key: key}
	if known, there := in.known.environments.entries[id]; there {
		g.entry = known
	} else if read, there := in.loadedEnv[id]; there {
		g.entry = read
	} else {
		g.state = environment.New(key)
	}
	in.env[id] = g
	in.envOrder = append(in.envOrder, g)
	return g
}

// dueGroups are the environments that a tick matters to, in a fixed order.
func (in *intake) dueGroups(s *step) []*group {
	var due []*group
	concerns := func(e *entry[environment.State]) bool {
		return s.word.Wakes(e.state.Key.ClusterUID, e.agentID, e.state.Wake())
	}
	for _, g := range in.env {
		if concerns(&g.entry) {
			due = append(due, g)
		}
	}
	for id, read := range in.loadedEnv {
		if in.env[id] == nil && concerns(&read) {
			due = append(due, in.group(read.state.Key))
		}
	}
	slices.SortFunc(due, func(a, b *group) int { return slices.Compare(a.id[:], b.id[:]) })
	return due
}

func (in *intake) advanceGroup(g *group, input environment.Input, trace string) {
	before := g.state
	after, facts := in.Environments.Advance(before, input)
	g.state = after
	if after.Serial != before.Serial {
		g.changed = true
		g.agentID = roster.Teller(after.AgentID, input.AgentID)
	}
	for i := range facts {
		g.facts = append(g.facts, &telling{fact: facts[i], trace: trace})
		in.Metrics.fact(&facts[i])
	}
}

// storeGroup adds an environment to what is written, once.
func (in *intake) storeGroup(writing *postgres.Writing, g *group) error {
	if !g.changed || g.written {
		return nil
	}
	g.written = true
	if err := in.chronicle(writing, g.id, g.facts); err != nil {
		return err
	}
	raw, err := json.Marshal(g.state)
	if err != nil {
		return fmt.Errorf("write the state of %s: %w", g.key, err)
	}
	writing.Environments = append(writing.Environments, postgres.Record{
		ID: g.id, ClusterUID: g.key.ClusterUID, AgentID: g.agentID, WakeAt: g.state.Wake(), State: string(raw), Told: g.told,
	})
	return nil
}
