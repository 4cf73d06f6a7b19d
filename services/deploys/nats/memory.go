package nats

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/services/deploys/roster"
)

// memory is what the reader keeps of what is stored: the state of workloads and environments, bounded, and all agents. It is right as long as nobody else writes, which the
// number of batches tells.
type memory struct {
	// batches is the number of the last transaction that this memory has seen; 0 for an empty one.
	batches      int64
	agents       map[int64]roster.Agent
	workloads    kept[rollout.State]
	environments kept[environment.State]
	// reporters by agent, and the claims of clusters in the order in which they were made.
	reporters map[int64]roster.Reporter
	claims    map[string][]roster.Claim
}

func newMemory(most int) *memory {
	return &memory{
		agents:       map[int64]roster.Agent{},
		reporters:    map[int64]roster.Reporter{},
		claims:       map[string][]roster.Claim{},
		workloads:    kept[rollout.State]{most: most, entries: map[uuid.UUID]entry[rollout.State]{}},
		environments: kept[environment.State]{most: most, entries: map[uuid.UUID]entry[environment.State]{}},
	}
}

// forget empties the memory.
func (m *memory) forget() {
	m.batches = 0
	clear(m.agents)
	clear(m.reporters)
	clear(m.claims)
	clear(m.workloads.entries)
	clear(m.environments.entries)
}

// undone is that the last transaction wrote nothing and is undone: the memory is right still.
func (m *memory) undone() {
	if m.batches--; m.batches == 0 {
		m.forget()
	}
}

// learn takes over who reports what.
func (m *memory) learn(reading *postgres.Reading) {
	for _, r := range reading.Reporters {
		m.reporters[r.AgentID] = r
	}
	for _, c := range reading.Claims {
		m.claims[c.ClusterUID] = append(m.claims[c.ClusterUID], c)
	}
}

// entry is one state with what is stored beside it.
type entry[S any] struct {
	state   S
	agentID int64
	// told is the position on the stream of the last fact; 0 where it is not known.
	told int64
	// stored is that the database has a row of it.
	stored bool
}

// kept is a bounded number of states.
type kept[S any] struct {
	most    int
	entries map[uuid.UUID]entry[S]
}

// put keeps an entry, and lets go of any other when there are too many: all are as good as another, since a batch says little about the next.
func (k *kept[S]) put(id uuid.UUID, e entry[S]) {
	k.entries[id] = e
	if len(k.entries) <= k.most {
		return
	}
	for other := range k.entries {
		if other != id {
			delete(k.entries, other)
			return
		}
	}
}

// load reads records into entries.
func load[S any](records []postgres.Record, into map[uuid.UUID]entry[S]) error {
	for i := range records {
		r := &records[i]
		e := entry[S]{agentID: r.AgentID, told: r.Told, stored: true}
		if err := json.Unmarshal([]byte(r.State), &e.state); err != nil {
			return fmt.Errorf("read state %s: %w", r.ID, err)
		}
		into[r.ID] = e
	}
	return nil
}
