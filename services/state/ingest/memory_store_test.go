package ingest_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// memoryStore is an ingest.Store in memory, for tests of decisions. Agents 7 and 8 exist.
type memoryStore struct {
	clusters   map[int64]*agent.Cluster
	workspaces map[uuid.UUID]workspace.Workspace
	// observation is what the cluster reports about every workspace.
	observation workspace.Observation
	objects     map[ingest.ObjectKey]ingest.Object
	// due are the workspaces with a deadline that the next tick reaches.
	due     []uuid.UUID
	orphans []orphan.Orphan

	highest agent.Versions
	// open is the open full resync, ended those to judge. A judgement finds received members, repair and terminated.
	open       *ingest.EndedResync
	ended      map[int64]ingest.EndedResync
	received   int64
	repair     []uuid.UUID
	terminated []ingest.FoundOrphan

	begun, judged, closed []string
	deleted               []ingest.ObjectChange
	messages              []*natsgo.Msg
}

var _ ingest.Store = (*memoryStore)(nil)

func newMemoryStore(workspaces ...workspace.Workspace) *memoryStore {
	s := &memoryStore{
		clusters: map[int64]*agent.Cluster{
			7: {AgentID: 7, UID: "cluster-7", Epoch: 1}, 8: {AgentID: 8, UID: "cluster-8", Epoch: 1},
		},
		workspaces: map[uuid.UUID]workspace.Workspace{},
		objects:    map[ingest.ObjectKey]ingest.Object{},
		ended:      map[int64]ingest.EndedResync{},
	}
	for _, w := range workspaces {
		s.workspaces[w.ID] = w
	}
	return s
}

func newIngest() *ingest.Ingest {
	return &ingest.Ingest{Logger: slog.New(slog.DiscardHandler), Encoder: encoder()}
}

// subjects returns the subjects of the published messages.
func (s *memoryStore) subjects() []string {
	var out []string
	for _, m := range s.messages {
		out = append(out, m.Subject)
	}
	return out
}

func (s *memoryStore) InsertMessages(_ context.Context, messages ...*natsgo.Msg) error {
	s.messages = append(s.messages, messages...)
	return nil
}

func (s *memoryStore) LockActiveAgents(context.Context) ([]int64, error) { return []int64{7, 8}, nil }

func (s *memoryStore) LockClusters(ctx context.Context, agents []int64) (map[int64]*agent.Cluster, error) {
	return s.Clusters(ctx, agents)
}

func (s *memoryStore) Clusters(_ context.Context, agents []int64) (map[int64]*agent.Cluster, error) {
	found := map[int64]*agent.Cluster{}
	for _, id := range agents {
		if c := s.clusters[id]; c != nil {
			locked := *c
			found[id] = &locked
		}
	}
	return found, nil
}

func (s *memoryStore) WorkspaceAgents(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]int64, error) {
	agents := map[uuid.UUID]int64{}
	for _, id := range ids {
		if w, exists := s.workspaces[id]; exists {
			agents[id] = w.AgentID
		}
	}
	return agents, nil
}

func (s *memoryStore) LockAgents(
	ctx context.Context, agents []int64, workspaces []uuid.UUID,
) (ingest.LockedAgents, error) {
	clusters, err := s.LockClusters(ctx, agents)
	if err != nil {
		return ingest.LockedAgents{}, err
	}
	byWorkspace, err := s.WorkspaceAgents(ctx, workspaces)
	return ingest.LockedAgents{Clusters: clusters, Ended: maps.Clone(s.ended), WorkspaceAgents: byWorkspace}, err
}

func (s *memoryStore) SaveClusters(_ context.Context, clusters map[int64]*agent.Cluster) error {
	maps.Copy(s.clusters, clusters)
	return nil
}

func (s *memoryStore) PutObjects(_ context.Context, objects []ingest.Object) ([]ingest.ObjectChange, error) {
	var changes []ingest.ObjectChange
	for _, next := range objects {
		before, existed := s.objects[next.Key()]
		after := next
		if existed {
			after = before.Merge(next)
		}
		if existed && after.ResourceVersion == before.ResourceVersion && after.Deleted == before.Deleted {
			continue
		}
		s.objects[next.Key()] = after
		changes = append(changes, ingest.ObjectChange{
			Key: next.Key(), UID: after.UID, WorkspaceID: after.WorkspaceID, Deleted: after.Deleted, Existed: existed,
			UIDBefore: before.UID, WorkspaceIDBefore: before.WorkspaceID, DeletedBefore: before.Deleted,
		})
	}
	return changes, nil
}

func (s *memoryStore) CountObjects(_ context.Context, id int64, before time.Time) (int64, int64, error) {
	var objects, workspaces int64
	for key := range s.objects {
		if key.AgentID == id {
			objects++
		}
	}
	for _, w := range s.workspaces {
		if w.AgentID == id && w.CreatedAt.Before(before) {
			workspaces++
		}
	}
	return objects, workspaces, nil
}

func (s *memoryStore) StoredObjects(_ context.Context, keys []ingest.ObjectKey) (map[ingest.ObjectKey]bool, error) {
	stored := map[ingest.ObjectKey]bool{}
	for _, key := range keys {
		if _, exists := s.objects[key]; exists {
			stored[key] = true
		}
	}
	return stored, nil
}

func (s *memoryStore) HighestVersions(context.Context, agent.Cluster) (agent.Versions, error) {
	return s.highest, nil
}

func (s *memoryStore) DueWorkspaces(context.Context, map[int64]time.Time) ([]uuid.UUID, error) {
	return s.due, nil
}

func (s *memoryStore) ResyncExists(_ context.Context, _ int64, resync string) (bool, error) {
	return slices.Contains(s.begun, resync), nil
}

func (s *memoryStore) BeginResync(_ context.Context, _ agent.Cluster, begun events.ObservedResyncBegun) error {
	s.begun = append(s.begun, begun.ResyncID)
	return nil
}

func (s *memoryStore) EndResync(
	_ context.Context, c agent.Cluster, ended events.ObservedResyncEnded,
) (*ingest.EndedResync, error) {
	if s.open == nil {
		return nil, nil //nolint:nilnil // not open
	}
	r := *s.open
	r.AgentID, r.ID, r.ClusterUID, r.Epoch = c.AgentID, ended.ResyncID, c.UID, c.Epoch
	r.Count, r.Ended = int64(ended.Count), ended.ObservedAt
	s.open, s.ended[c.AgentID] = nil, r
	return &r, nil
}

// Judge finds all objects absent if the resync is complete.
func (s *memoryStore) Judge(_ context.Context, r ingest.EndedResync) (*ingest.Judgement, error) {
	s.judged = append(s.judged, r.ID)
	j := &ingest.Judgement{Resync: r, Received: s.received}
	if !r.IsComplete(s.received) {
		return j, nil
	}
	for key, o := range s.objects {
		if key.AgentID == r.AgentID && !o.Deleted {
			j.Findings.Absent = append(j.Findings.Absent, ingest.AbsentObject{Key: key, WorkspaceID: o.WorkspaceID})
		}
	}
	j.Findings.Differing = s.repair
	for _, o := range s.terminated {
		key := ingest.ObjectKey{
			AgentID: o.AgentID, Kind: ingest.KindDeployment, Namespace: o.Namespace, Name: o.Name,
		}
		j.Findings.Unowned = append(j.Findings.Unowned, key)
	}
	return j, nil
}

func (s *memoryStore) CloseResync(_ context.Context, r ingest.EndedResync, _ int64, complete bool) error {
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	s.closed = append(s.closed, r.ID+" "+outcome)
	delete(s.ended, r.AgentID)
	return nil
}

func (s *memoryStore) MarkAbsent(
	_ context.Context, _ ingest.EndedResync, objects []ingest.AbsentObject,
) ([]ingest.ObjectChange, error) {
	var absent []ingest.ObjectChange
	for _, a := range objects {
		o := s.objects[a.Key]
		o.Deleted = true
		s.objects[a.Key] = o
		absent = append(absent, ingest.ObjectChange{
			Key: a.Key, UID: o.UID, WorkspaceID: o.WorkspaceID, Deleted: true,
			Existed: true, UIDBefore: o.UID, WorkspaceIDBefore: o.WorkspaceID,
		})
	}
	return absent, nil
}

func (s *memoryStore) RemoveDeleted(context.Context, ingest.EndedResync, []ingest.ObjectKey) error {
	return nil
}

func (s *memoryStore) DeploymentsOfTerminated(
	_ context.Context, _ ingest.EndedResync, deployments []ingest.ObjectKey,
) ([]ingest.FoundOrphan, error) {
	var found []ingest.FoundOrphan
	for _, o := range s.terminated {
		if slices.ContainsFunc(deployments, func(d ingest.ObjectKey) bool { return d.Name == o.Name }) {
			found = append(found, o)
		}
	}
	return found, nil
}

func (s *memoryStore) InsertOrphans(_ context.Context, found []ingest.FoundOrphan) ([]ingest.FoundOrphan, error) {
	for _, o := range found {
		s.orphans = append(s.orphans, o.Orphan)
	}
	return found, nil
}

func (s *memoryStore) DeleteOrphans(_ context.Context, deployments []ingest.ObjectChange) error {
	s.deleted = append(s.deleted, deployments...)
	return nil
}

func (s *memoryStore) LockDeletions(_ context.Context, agents []int64, labels []string) ([]orphan.Orphan, error) {
	var found []orphan.Orphan
	for _, o := range s.orphans {
		if o.DesiredRevision > 0 && slices.Contains(agents, o.AgentID) && slices.Contains(labels, o.Label) {
			found = append(found, o)
		}
	}
	return found, nil
}

func (s *memoryStore) SaveOrphan(_ context.Context, saved orphan.Orphan) error {
	for i, o := range s.orphans {
		if o.AgentID == saved.AgentID && o.UID == saved.UID {
			s.orphans[i] = saved
		}
	}
	return nil
}

func (s *memoryStore) LockWorkspaces(
	_ context.Context, ids []uuid.UUID,
) (map[uuid.UUID]workspace.Workspace, map[uuid.UUID]*workspace.Observation, error) {
	locked, observations := map[uuid.UUID]workspace.Workspace{}, map[uuid.UUID]*workspace.Observation{}
	for _, id := range ids {
		if w, exists := s.workspaces[id]; exists {
			observation := s.observation
			locked[id], observations[id] = w, &observation
		}
	}
	return locked, observations, nil
}

func (s *memoryStore) AgentConfigurations(
	_ context.Context, ids []int64,
) (map[int64]agent.Configuration, error) {
	found := map[int64]agent.Configuration{}
	for _, id := range ids {
		found[id] = agent.DefaultConfiguration()
	}
	return found, nil
}

func (s *memoryStore) SaveWorkspaces(_ context.Context, saved []workspace.Workspace) error {
	for _, w := range saved {
		s.workspaces[w.ID] = w
	}
	return nil
}
