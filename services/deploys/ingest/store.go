package ingest

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/publish"
	"lockstep.internal/services/deploys/rollout"
)

// Record is the stored state of a workload or an environment.
type Record[S any] struct {
	ID    uuid.UUID
	State S
	// AgentID of the agent that reported it last.
	AgentID int64
	// Position of its newest fact on the stream DEPLOYS; 0 if unknown.
	Position int64
	// Stored is false for a new record.
	Stored bool
}

// Member is an object of an open full resync.
type Member struct {
	AgentID int64
	Object  string
	// WorkloadID of a workload; zero for a ReplicaSet or ControllerRevision.
	WorkloadID uuid.UUID
}

// Query selects the state that a batch needs.
type Query struct {
	// Agents selects all agents.
	Agents bool
	// WorkloadIDs and EnvironmentIDs select records by id.
	WorkloadIDs, EnvironmentIDs []uuid.UUID
	// ReporterIDs selects reporters by agent, ClaimClusters claims by cluster.
	ReporterIDs   []int64
	ClaimClusters []string
	// DueClusters selects records of these clusters with a wake-up time at DueAt or before.
	DueClusters []string
	DueAt       time.Time
}

// Loaded is the result of a [Query].
type Loaded struct {
	Agents       []agents.Agent
	Workloads    []*Record[rollout.State]
	Environments []*Record[environment.State]
	Reporters    []ownership.Reporter
	// Claims of a cluster are ordered oldest first.
	Claims []ownership.Claim
}

// ResyncResult compares the members of an ended full resync with the stored workloads.
type ResyncResult struct {
	// Members is the number of members.
	Members int64
	// Absent are stored workloads that are present and not among the members, except the touched ones.
	Absent []*Record[rollout.State]
	// Listed are the touched workloads among the members.
	Listed map[uuid.UUID]bool
}

// Changes are the rows that a batch writes. Each id occurs once.
type Changes struct {
	Agents       []agents.Agent
	Members      []Member
	Workloads    []*Record[rollout.State]
	Environments []*Record[environment.State]
	Facts        []*publish.Fact
	Rollouts     []history.Rollout
	Reporters    []ownership.Reporter
	Claims       []ownership.Claim
	// Positions of older facts that were republished, by id.
	Positions map[string]int64
}

// Store is the port to the database, within the transaction of one batch.
type Store interface {
	publish.Facts

	// Begin increments the batch number. It returns the number and the result of the query.
	Begin(ctx context.Context, q Query) (int64, Loaded, error)
	// Load returns the result of the query.
	Load(ctx context.Context, q Query) (Loaded, error)
	// ClusterWorkloads returns all workloads of a cluster.
	ClusterWorkloads(ctx context.Context, clusterUID string) ([]*Record[rollout.State], error)
	// BeginResync stores the begin of a full resync and deletes the members of the agent. It returns false, without
	// effect, for a resync that has begun before.
	BeginResync(ctx context.Context, agentID int64, resyncID string, begunAt time.Time) (bool, error)
	// EndResync adds members to the stored ones, compares all of them with the workloads of the given agents in the
	// cluster, and deletes them.
	EndResync(ctx context.Context, a *agents.Agent, agentIDs []int64, touched []uuid.UUID, members []Member) (
		ResyncResult, error)
	// KnownFacts returns which of the facts are stored, and the highest sequence number of each workload with facts.
	KnownFacts(ctx context.Context, ids []string, workloads []uuid.UUID) (map[string]bool, map[uuid.UUID]int64, error)
	// Save writes changes.
	Save(ctx context.Context, c *Changes) error
}
