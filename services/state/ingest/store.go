package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// Store is the database within the transaction of one batch. Rows are locked in this order: agents,
// objects, workspaces.
type Store interface {
	ObservedStore
	AppliedStore
	WorkspaceStore
}

// ObservedStore holds what a batch of OBSERVED changes.
type ObservedStore interface {
	ResyncStore
	ResyncRequestStore
	OrphanStore

	// LockAgents locks the agents that exist. It also reads the agents of workspaces.
	LockAgents(ctx context.Context, agents []int64, workspaces []uuid.UUID) (LockedAgents, error)
	SaveClusters(ctx context.Context, clusters map[int64]*agent.Cluster) error
	// PutObjects stores objects that are newer than the stored ones and returns these changes. The keys
	// are distinct.
	PutObjects(ctx context.Context, objects []Object) ([]ObjectChange, error)
	// CountObjects returns the number of stored objects of a locked agent, and of its workspaces that were created
	// before a time.
	CountObjects(ctx context.Context, agentID int64, before time.Time) (objects, workspaces int64, err error)
	// StoredObjects returns those of the objects that are stored.
	StoredObjects(ctx context.Context, keys []ObjectKey) (map[ObjectKey]bool, error)
	// DueWorkspaces returns workspaces whose deadline has passed on the clock of their agent, and those of an agent with a
	// new configuration that are not terminated. It marks these configurations as considered.
	DueWorkspaces(ctx context.Context, clocks map[int64]time.Time) ([]uuid.UUID, error)
}

// Outbox holds messages until the transaction has committed. Package outbox then publishes them.
type Outbox interface {
	// InsertMessages puts the messages into the outbox.
	InsertMessages(ctx context.Context, messages ...*nats.Msg) error
}

// ResyncRequestStore holds what a request for a full resync needs.
type ResyncRequestStore interface {
	Outbox

	// LockActiveAgents locks the agents that are not revoked and returns their ids.
	LockActiveAgents(ctx context.Context) ([]int64, error)
	// Clusters returns the clusters of the agents that exist.
	Clusters(ctx context.Context, agentIDs []int64) (map[int64]*agent.Cluster, error)
	// LockClusters locks the agents that exist and returns their clusters.
	LockClusters(ctx context.Context, agentIDs []int64) (map[int64]*agent.Cluster, error)
	// HighestVersions returns the highest stored version of each kind in the cluster's epoch.
	HighestVersions(ctx context.Context, c agent.Cluster) (agent.Versions, error)
}

// ResyncStore holds full resyncs.
type ResyncStore interface {
	// ResyncExists reports whether a row for this resync exists.
	ResyncExists(ctx context.Context, agentID int64, resyncID string) (bool, error)
	// BeginResync stores an open resync and marks the agent's other open resyncs incomplete.
	BeginResync(ctx context.Context, c agent.Cluster, begun events.ObservedResyncBegun) error
	// EndResync records the end of an open resync of the cluster's epoch. It returns nil for other resyncs, and for a
	// duplicate.
	EndResync(ctx context.Context, c agent.Cluster, ended events.ObservedResyncEnded) (*EndedResync, error)
	// Judge compares an ended resync with the stored objects. It changes nothing.
	Judge(ctx context.Context, r EndedResync) (*Judgement, error)
	// MarkAbsent marks those of the objects as deleted that still exist and are covered by the lists.
	MarkAbsent(ctx context.Context, r EndedResync, objects []AbsentObject) ([]ObjectChange, error)
	// RemoveDeleted removes those of the objects that are still deleted and covered by the lists.
	RemoveDeleted(ctx context.Context, r EndedResync, objects []ObjectKey) error
	// DeploymentsOfTerminated returns those of the Deployments that exist and belong to workspaces that were
	// terminated before the resync.
	DeploymentsOfTerminated(ctx context.Context, r EndedResync, deployments []ObjectKey) ([]FoundOrphan, error)
	// CloseResync stores the outcome of an ended resync.
	CloseResync(ctx context.Context, r EndedResync, received int64, complete bool) error
}

// OrphanStore holds orphans.
type OrphanStore interface {
	// InsertOrphans stores orphans and returns those that were not stored before.
	InsertOrphans(ctx context.Context, orphans []FoundOrphan) ([]FoundOrphan, error)
	// DeleteOrphans deletes orphans of these Deployments, except those that are being deleted.
	DeleteOrphans(ctx context.Context, deployments []ObjectChange) error
}

// AppliedStore holds what a batch of APPLIED changes, besides workspaces.
type AppliedStore interface {
	// WorkspaceAgents returns the agents of the workspaces that exist.
	WorkspaceAgents(ctx context.Context, workspaces []uuid.UUID) (map[uuid.UUID]int64, error)
	// LockDeletions locks orphans with a requested or completed deletion, selected by agent and label.
	LockDeletions(ctx context.Context, agents []int64, labels []string) ([]orphan.Orphan, error)
	SaveOrphan(ctx context.Context, o orphan.Orphan) error
}

// WorkspaceStore holds the workspaces.
type WorkspaceStore interface {
	Outbox

	// LockWorkspaces locks the existing workspaces in id order and returns them with their observations.
	LockWorkspaces(
		ctx context.Context,
		ids []uuid.UUID,
	) (map[uuid.UUID]workspace.Workspace, map[uuid.UUID]*workspace.Observation, error)
	// AgentConfigurations returns the configurations of the agents that exist.
	AgentConfigurations(ctx context.Context, ids []int64) (map[int64]agent.Configuration, error)
	// SaveWorkspaces stores locked workspaces.
	SaveWorkspaces(ctx context.Context, workspaces []workspace.Workspace) error
}

// LockedAgents are agents that the transaction has locked.
type LockedAgents struct {
	Clusters map[int64]*agent.Cluster
	// Ended has the ended resync in the cluster's epoch of agents that have one.
	Ended map[int64]EndedResync
	// WorkspaceAgents has the agent of each workspace that exists.
	WorkspaceAgents map[uuid.UUID]int64
}

// UnprocessableError is the error of a message that can never be processed.
type UnprocessableError struct {
	Sequence uint64
	Err      error
}

// Error implements error.
func (r *UnprocessableError) Error() string { return fmt.Sprintf("message %d: %v", r.Sequence, r.Err) }

// Unwrap returns the reason.
func (r *UnprocessableError) Unwrap() error { return r.Err }
