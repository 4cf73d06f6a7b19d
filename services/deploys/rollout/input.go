package rollout

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Input is one input of a workload: exactly one of Workload, Revision, Absence and Released is set, or none of them for
// a tick.
type Input struct {
	// AgentID of the sender.
	AgentID int64
	// ObservedAt is the time of the watcher's clock.
	ObservedAt time.Time
	// Epoch of the cluster's resource versions. It grows when they start again, as after a restore. Inputs of a lower
	// epoch than the state's are ignored; those of a higher one are newer whatever their version.
	Epoch int
	// KnownBefore reports that a full resync of the agent with the same selection was complete: an unknown workload is
	// new, not a baseline.
	KnownBefore bool
	// KnownAt is the begin of that resync, if known. A workload created earlier was selected later: it is a baseline.
	KnownAt time.Time

	// Workload is an observation of the workload.
	Workload *events.ObservedWorkload
	// Revision is an observation of a ReplicaSet or a ControllerRevision of the workload.
	Revision *events.ObservedWorkloadRevision
	// Absence reports that a complete full resync lacks the workload.
	Absence *Absence
	// Released reports that the cluster goes to another project.
	Released bool
}

// Absence has an effect only if the state knows no version above that of the list.
type Absence struct {
	// ListVersion is the resourceVersion of the list of the workload's kind.
	ListVersion string
	// Unselected reports that the selection changed since the last complete full resync: an absent workload may exist.
	Unselected bool
}
