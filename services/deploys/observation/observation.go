package observation

import (
	"crypto/sha256"
	"strconv"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Observation is one message of OBSERVED. Either Tick is true or exactly one of the pointers is set. The zero value
// stands for an irrelevant message.
type Observation struct {
	AgentID    int64
	ClusterUID string
	// ObservedAt is the time of the watcher's clock. StoredAt bounds it.
	ObservedAt time.Time
	// TraceParent is the W3C trace context of the message; empty for none.
	TraceParent string

	Workload    *events.ObservedWorkload
	Revision    *events.ObservedWorkloadRevision
	Pods        *events.ObservedWorkloadPods
	Rejected    *events.ObservedRejected
	ResyncBegun *events.ObservedResyncBegun
	ResyncEnded *events.ObservedResyncEnded
	// ClusterReleased is published by this service, not by an agent: AgentID is 0.
	ClusterReleased *events.ObservedClusterReleased
	Tick            bool

	// Key and ID identify the workload that a workload, a revision or a rejected workload belongs to.
	Key rollout.Key
	ID  uuid.UUID
}

// StoredAt bounds the agent's time by the time at which the stream stored the message.
func (o *Observation) StoredAt(stored time.Time) {
	if o.ClusterReleased == nil {
		o.ObservedAt = event.AgentTime(o.ObservedAt, stored)
	}
}

// Relevant reports whether this service processes the observation.
func (o *Observation) Relevant() bool { return o.ClusterUID != "" }

// Object returns the metadata of the observed object; nil for other observations.
func (o *Observation) Object() *events.ObjectMeta {
	switch {
	case o.Workload != nil:
		return &o.Workload.Object
	case o.Revision != nil:
		return &o.Revision.Object
	case o.Pods != nil:
		return &o.Pods.Object
	case o.Rejected != nil:
		return &o.Rejected.Object
	default:
		return nil
	}
}

// MemberKey identifies the observed object among the members of a full resync; empty for other observations.
func (o *Observation) MemberKey() string {
	switch {
	case o.Workload != nil:
		return string(o.Workload.Kind) + "/" + o.Workload.Object.UID
	case o.Revision != nil:
		return string(o.Revision.Kind) + "/" + o.Revision.Object.UID
	case o.Rejected != nil:
		return o.Rejected.Kind + "/" + o.Rejected.Object.UID
	default:
		return ""
	}
}

// NewID returns the id under which a workload or an environment is stored: a hash of its key.
func NewID(cluster, namespace, kind, name string) uuid.UUID {
	var text [256]byte
	parts := text[:0]
	for _, part := range [...]string{cluster, namespace, kind, name} {
		parts = append(strconv.AppendInt(parts, int64(len(part)), 10), ':')
		parts = append(append(parts, part...), '/')
	}
	digest := sha256.Sum256(parts)
	return uuid.UUID(digest[:16])
}
