package ingest

import (
	"github.com/google/uuid"

	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/orphan"
)

// Kinds of objects that the state of a workspace is computed from.
const (
	KindDeployment = "deployment"
	KindReplicaSet = "replicaset"
	KindPod        = "pod"
)

// Object is the last observed version of a Kubernetes object.
type Object struct {
	AgentID               int64
	Kind, Namespace, Name string
	UID, ClusterUID       string
	Epoch                 int64
	// ResourceVersion orders the versions within an epoch.
	ResourceVersion string
	Deleted         bool
	// WorkspaceID is zero if the object names no workspace of its agent.
	WorkspaceID uuid.UUID
	// ResyncID of the full resync that listed the object; empty for none.
	ResyncID string
	// Data is the part of the event payload that state reads, as JSON without NUL characters.
	Data string
}

// ObjectKey identifies an object.
type ObjectKey struct {
	AgentID               int64
	Kind, Namespace, Name string
}

// Key returns the object's key.
func (o *Object) Key() ObjectKey { return ObjectKey{o.AgentID, o.Kind, o.Namespace, o.Name} }

// Merge returns the newer of two versions of one object. A deletion is newer than an update of the same version.
// If only one version has a resync id, the result keeps it.
func (o *Object) Merge(next Object) Object {
	if next.ResyncID == "" {
		next.ResyncID = o.ResyncID
	}
	if next.newerThan(o) {
		return next
	}
	merged := *o
	merged.ResyncID = next.ResyncID
	return merged
}

func (o *Object) newerThan(other *Object) bool {
	if o.Epoch != other.Epoch {
		return o.Epoch > other.Epoch
	}
	if order := agent.CompareVersions(o.ResourceVersion, other.ResourceVersion); order != 0 {
		return order > 0
	}
	return o.Deleted && !other.Deleted
}

// sameVersion reports whether both are the same version of one object.
func (o *Object) sameVersion(other *Object) bool {
	return o.Epoch == other.Epoch && o.ResourceVersion == other.ResourceVersion && o.Deleted == other.Deleted
}

// ObjectChange is a stored change of an object.
type ObjectChange struct {
	Key         ObjectKey
	UID         string
	WorkspaceID uuid.UUID
	Deleted     bool

	// Existed is true if a row existed before the change. The Before fields are its old values.
	Existed           bool
	UIDBefore         string
	WorkspaceIDBefore uuid.UUID
	DeletedBefore     bool
}

// FoundOrphan is a newly reported orphan with its cluster.
type FoundOrphan struct {
	orphan.Orphan

	ClusterUID string
}
