package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

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
	OrphanStore

	// Identify locks the agents that exist, and returns the agents of the workspaces that exist.
	Identify(
		ctx context.Context,
		agents []int64,
		workspaces []uuid.UUID,
	) (map[int64]*agent.Cluster, map[uuid.UUID]int64, error)
	SaveClusters(ctx context.Context, clusters map[int64]*agent.Cluster) error
	// PutObjects stores objects that are newer than the stored ones and returns these changes. The keys
	// are distinct.
	PutObjects(ctx context.Context, objects []Object) ([]ObjectChange, error)
	// HighestVersions returns the highest stored version of each kind in the cluster's epoch.
	HighestVersions(ctx context.Context, c agent.Cluster) (agent.Versions, error)
	RequestResync(ctx context.Context, c agent.Cluster, nonce string, cause events.ResyncRequestCause, at time.Time) error
	// DueWorkspaces returns workspaces with a deadline at or before their agent's clock, and all of an
	// agent that was reconfigured since its last tick.
	DueWorkspaces(ctx context.Context, clocks map[int64]time.Time) ([]uuid.UUID, error)
}

// ResyncStore holds full resyncs.
type ResyncStore interface {
	// ResyncKnown reports whether the begin of the resync is stored.
	ResyncKnown(ctx context.Context, agentID int64, resyncID string) (bool, error)
	// BeginResync stores an open resync and marks the agent's other open resyncs incomplete.
	BeginResync(ctx context.Context, c agent.Cluster, begun events.ObservedResyncBegun) error
	// OpenResync returns an open resync of the cluster's epoch with the number of stored members.
	OpenResync(ctx context.Context, c agent.Cluster, resyncID string) (OpenResync, bool, error)
	CloseResync(ctx context.Context, agentID int64, resyncID string, received int64, complete bool, at time.Time) error
	// MarkAbsent marks objects deleted that a complete resync did not list, up to the listed versions.
	MarkAbsent(ctx context.Context, agentID int64, resyncID string) ([]ObjectChange, error)
	// WorkspacesToRepair returns workspaces without a Deployment or with one that was not applied.
	WorkspacesToRepair(ctx context.Context, agentID int64) ([]uuid.UUID, error)
	// RevivedDeployments returns Deployments that a resync lists although their workspaces are terminated.
	RevivedDeployments(ctx context.Context, c agent.Cluster, resyncID string, at time.Time) ([]FoundOrphan, error)
}

// OrphanStore holds orphans.
type OrphanStore interface {
	// InsertOrphans stores orphans and publishes each once.
	InsertOrphans(ctx context.Context, orphans []FoundOrphan) error
	// DeleteOrphans deletes orphans of these Deployments, except those that are being deleted.
	DeleteOrphans(ctx context.Context, deployments []ObjectChange) error
}

// AppliedStore holds what a batch of APPLIED changes, besides workspaces.
type AppliedStore interface {
	// Owners returns the agents of the workspaces that exist.
	Owners(ctx context.Context, workspaces []uuid.UUID) (map[uuid.UUID]int64, error)
	// LockDeletions locks orphans, by agent and label, whose deletion was requested or has ended.
	LockDeletions(ctx context.Context, agents []int64, labels []string) ([]orphan.Orphan, error)
	SaveOrphan(ctx context.Context, update orphan.Update) error
}

// WorkspaceStore holds the workspaces.
type WorkspaceStore interface {
	// LockWorkspaces locks the workspaces that exist, in the order of their ids, and returns them with
	// what their clusters have reported.
	LockWorkspaces(
		ctx context.Context,
		ids []uuid.UUID,
	) (map[uuid.UUID]workspace.Workspace, map[uuid.UUID]*workspace.Observation, error)
	// SaveWorkspaces stores the changed workspaces and publishes their events.
	SaveWorkspaces(ctx context.Context, updates []workspace.Update) error
}

// OpenResync is a full resync that has begun and not ended.
type OpenResync struct {
	Begun time.Time
	// Expected is the announced number of members, Received the stored one.
	Expected, Received int64
}

// Rejected is the error of a message that can never be applied.
type Rejected struct { //nolint:errname // "rejected message" is the term
	Sequence uint64
	Err      error
}

// Error implements error.
func (r *Rejected) Error() string { return fmt.Sprintf("message %d: %v", r.Sequence, r.Err) }

// Unwrap returns the reason.
func (r *Rejected) Unwrap() error { return r.Err }
