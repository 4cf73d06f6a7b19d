package ingest

import (
	"github.com/google/uuid"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/rollout"
)

// cache keeps stored state in memory: all agents, the used reporters and claims, and a limited number of records. It is
// valid while no other process writes. Each batch increments a number in the database; a gap shows that another process
// wrote.
type cache struct {
	// batch is the number of the last processed batch; 0 for an empty cache.
	batch        int64
	agents       map[int64]agents.Agent
	reporters    map[int64]ownership.Reporter
	claims       map[string][]ownership.Claim
	workloads    recordCache[rollout.State]
	environments recordCache[environment.State]
}

func newCache(limit int) *cache {
	c := &cache{
		workloads:    recordCache[rollout.State]{limit: limit},
		environments: recordCache[environment.State]{limit: limit},
	}
	c.clear()
	return c
}

func (c *cache) clear() {
	c.batch = 0
	c.agents, c.reporters = map[int64]agents.Agent{}, map[int64]ownership.Reporter{}
	c.claims = map[string][]ownership.Claim{}
	c.workloads.records = map[uuid.UUID]*Record[rollout.State]{}
	c.environments.records = map[uuid.UUID]*Record[environment.State]{}
}

// add adds the loaded agents, reporters and claims. Records enter the cache with their next change.
func (c *cache) add(loaded *Loaded) {
	for _, a := range loaded.Agents {
		c.agents[a.ID] = a
	}
	for _, r := range loaded.Reporters {
		c.reporters[r.AgentID] = r
	}
	for _, claim := range loaded.Claims {
		c.claims[claim.ClusterUID] = append(c.claims[claim.ClusterUID], claim)
	}
}

// recordCache keeps up to limit records.
type recordCache[S any] struct {
	limit   int
	records map[uuid.UUID]*Record[S]
}

// put adds a record. Beyond the limit it evicts another, arbitrary record.
func (c *recordCache[S]) put(r *Record[S]) {
	if c.limit == 0 {
		return
	}
	c.records[r.ID] = r
	if len(c.records) <= c.limit {
		return
	}
	for id := range c.records {
		if id != r.ID {
			delete(c.records, id)
			return
		}
	}
}
