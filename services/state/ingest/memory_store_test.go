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
	// open is the open full resync. repair and terminated are returned when it ends.
	open       *ingest.OpenResync
	repair     []uuid.UUID
	terminated []ingest.FoundOrphan

	begun, closed []string
	deleted       []ingest.ObjectChange
	messages      []*natsgo.Msg
}

var _ ingest.Store = (*memoryStore)(nil)

func newMemoryStore(workspaces ...workspace.Workspace) *memoryStore {
	s := &memoryStore{
		clusters: map[int64]*agent.Cluster{
			7: {AgentID: 7, UID: "cluster-7", Epoch: 1}, 8: {AgentID: 8, UID: "cluster-8", Epoch: 1},
		},
		workspaces: map[uuid.UUID]workspace.Workspace{},
		objects:    map[ingest.ObjectKey]ingest.Object{},
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

func (s *memoryStore) Publish(_ context.Context, messages ...*natsgo.Msg) error {
	s.messages = append(s.messages, messages...)
	return nil
}

func (s *memoryStore) LockActiveAgents(context.Context) ([]int64, error) { return []int64{7, 8}, nil }

func (s *memoryStore) LockClusters(_ context.Context, agents []int64) (map[int64]*agent.Cluster, error) {
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
) (map[int64]*agent.Cluster, map[uuid.UUID]int64, error) {
	clusters, err := s.LockClusters(ctx, agents)
	if err != nil {
		return nil, nil, err
	}
	byWorkspace, err := s.WorkspaceAgents(ctx, workspaces)
	return clusters, byWorkspace, err
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

func (s *memoryStore) FindOpenResync(context.Context, agent.Cluster, string) (ingest.OpenResync, bool, error) {
	if s.open == nil {
		return ingest.OpenResync{}, false, nil
	}
	return *s.open, true, nil
}

func (s *memoryStore) CloseResync(
	_ context.Context, _ int64, resync string, _ int64, complete bool, _ time.Time,
) error {
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	s.closed = append(s.closed, resync+" "+outcome)
	return nil
}

// MarkAbsent marks all objects that no resync listed.
func (s *memoryStore) MarkAbsent(_ context.Context, agentID int64, resync string) ([]ingest.ObjectChange, error) {
	var absent []ingest.ObjectChange
	for key, o := range s.objects {
		if key.AgentID == agentID && o.ResyncID != resync && !o.Deleted {
			o.Deleted = true
			s.objects[key] = o
			absent = append(absent, ingest.ObjectChange{
				Key: key, UID: o.UID, WorkspaceID: o.WorkspaceID, Deleted: true,
				Existed: true, UIDBefore: o.UID, WorkspaceIDBefore: o.WorkspaceID,
			})
		}
	}
	return absent, nil
}

func (s *memoryStore) WorkspacesToRepair(context.Context, int64) ([]uuid.UUID, error) {
	return s.repair, nil
}

func (s *memoryStore) DeploymentsOfTerminated(
	context.Context, agent.Cluster, string, time.Time,
) ([]ingest.FoundOrphan, error) {
	return s.terminated, nil
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

func (s *memoryStore) SaveWorkspaces(_ context.Context, saved []workspace.Workspace) error {
	for _, w := range saved {
		s.workspaces[w.ID] = w
	}
	return nil
}
