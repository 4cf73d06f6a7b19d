package detection

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/publish"
	"lockstep.internal/services/deploys/rollout"
)

// memoryStore implements [ingest.Store] in memory.
type memoryStore struct {
	batches      int64
	workloads    map[uuid.UUID]*ingest.Record[rollout.State]
	environments map[uuid.UUID]*ingest.Record[environment.State]
	reporters    map[int64]ownership.Reporter
	claims       map[string][]ownership.Claim
	resyncs      map[resyncKey]struct{}
	// members of open resyncs, by agent.
	members map[int64]map[ingest.Member]struct{}
}

type resyncKey struct {
	agentID  int64
	resyncID string
}

func newMemoryStore() *memoryStore {
	return &memoryStore{
		workloads:    map[uuid.UUID]*ingest.Record[rollout.State]{},
		environments: map[uuid.UUID]*ingest.Record[environment.State]{},
		reporters:    map[int64]ownership.Reporter{}, claims: map[string][]ownership.Claim{},
		resyncs: map[resyncKey]struct{}{}, members: map[int64]map[ingest.Member]struct{}{},
	}
}

func (s *memoryStore) addDecisions(reporters []ownership.Reporter, claims []ownership.Claim) {
	for _, r := range reporters {
		s.reporters[r.AgentID] = r
	}
	for _, c := range claims {
		s.claims[c.ClusterUID] = append(s.claims[c.ClusterUID], c)
	}
}

// Begin implements [ingest.Store]. Agents stay in the cache of the processor.
func (s *memoryStore) Begin(ctx context.Context, q ingest.Query) (int64, ingest.Loaded, error) {
	loaded, err := s.Load(ctx, q)
	return s.batches + 1, loaded, err
}

// Load implements [ingest.Store].
func (s *memoryStore) Load(_ context.Context, q ingest.Query) (ingest.Loaded, error) {
	var loaded ingest.Loaded
	for _, id := range q.WorkloadIDs {
		if r, known := s.workloads[id]; known {
			loaded.Workloads = append(loaded.Workloads, r)
		}
	}
	for _, id := range q.EnvironmentIDs {
		if r, known := s.environments[id]; known {
			loaded.Environments = append(loaded.Environments, r)
		}
	}
	for _, id := range q.ReporterIDs {
		if r, known := s.reporters[id]; known {
			loaded.Reporters = append(loaded.Reporters, r)
		}
	}
	for _, cluster := range q.ClaimClusters {
		loaded.Claims = append(loaded.Claims, s.claims[cluster]...)
	}
	due := func(wakeAt time.Time) bool { return !wakeAt.IsZero() && !wakeAt.After(q.DueAt) }
	for _, cluster := range q.DueClusters {
		for _, r := range s.workloads {
			if r.State.Key.ClusterUID == cluster && due(r.State.Wake()) {
				loaded.Workloads = append(loaded.Workloads, r)
			}
		}
		for _, r := range s.environments {
			if r.State.Key.ClusterUID == cluster && due(r.State.Wake()) {
				loaded.Environments = append(loaded.Environments, r)
			}
		}
	}
	return loaded, nil
}

// ClusterWorkloads implements [ingest.Store].
func (s *memoryStore) ClusterWorkloads(_ context.Context, cluster string) ([]*ingest.Record[rollout.State], error) {
	var found []*ingest.Record[rollout.State]
	for _, r := range s.workloads {
		if r.State.Key.ClusterUID == cluster {
			found = append(found, r)
		}
	}
	return found, nil
}

// BeginResync implements [ingest.Store].
func (s *memoryStore) BeginResync(_ context.Context, agentID int64, resyncID string, _ time.Time) (bool, error) {
	key := resyncKey{agentID: agentID, resyncID: resyncID}
	if _, begun := s.resyncs[key]; begun {
		return false, nil
	}
	s.resyncs[key] = struct{}{}
	delete(s.members, agentID)
	return true, nil
}

func (s *memoryStore) addMembers(members []ingest.Member) {
	for _, m := range members {
		if s.members[m.AgentID] == nil {
			s.members[m.AgentID] = map[ingest.Member]struct{}{}
		}
		s.members[m.AgentID][m] = struct{}{}
	}
}

// EndResync implements [ingest.Store].
func (s *memoryStore) EndResync(
	_ context.Context, a *agents.Agent, agentIDs []int64, touched []uuid.UUID, members []ingest.Member,
) (ingest.ResyncResult, error) {
	s.addMembers(members)
	result := ingest.ResyncResult{Members: int64(len(s.members[a.ID])), Listed: map[uuid.UUID]bool{}}
	arrived := map[uuid.UUID]bool{}
	for m := range s.members[a.ID] {
		arrived[m.WorkloadID] = true
	}
	delete(s.members, a.ID)
	skip := map[uuid.UUID]bool{}
	for _, id := range touched {
		skip[id], result.Listed[id] = true, arrived[id]
	}
	authority := agents.Authority{ClusterUID: a.ClusterUID, AgentIDs: agentIDs}
	for id, r := range s.workloads {
		covered := authority.Covers(r.State.Key.ClusterUID, r.AgentID)
		if covered && r.State.Expected() && !arrived[id] && !skip[id] {
			result.Absent = append(result.Absent, r)
		}
	}
	return result, nil
}

// KnownFacts implements [ingest.Store]. The detector publishes nothing.
func (s *memoryStore) KnownFacts(context.Context, []string, []uuid.UUID) (map[string]bool, map[uuid.UUID]int64, error) {
	return nil, nil, nil
}

// Between implements [publish.Facts]. The detector publishes nothing.
func (s *memoryStore) Between(context.Context, uuid.UUID, int64, int64, time.Duration) ([]publish.Fact, error) {
	return nil, nil
}

// Save implements [ingest.Store].
func (s *memoryStore) Save(_ context.Context, c *ingest.Changes) error {
	s.batches++
	s.addMembers(c.Members)
	for _, r := range c.Workloads {
		r.Stored = true
		s.workloads[r.ID] = r
	}
	for _, r := range c.Environments {
		r.Stored = true
		s.environments[r.ID] = r
	}
	s.addDecisions(c.Reporters, c.Claims)
	return nil
}
