package rollout

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Input is one step of what is known about a workload: exactly one of Workload, Revision, Absence and Released, or none of them, which is a tick.
type Input struct {
	// AgentID of the agent that tells it.
	AgentID int64
	// ObservedAt is the time by the watcher's clock: of the observation, of the resync's end, of the tick.
	ObservedAt time.Time
	// Epoch of the cluster's resource versions: grows when they began anew, as after a restore of its store. Inputs of a lower epoch than the state
	// knows are ignored, those of a higher one are newer whatever their version.
	Epoch int
	// KnownBefore says that an earlier full resync of the same agent with the same selection was complete: what is not known then is new, not a baseline.
	KnownBefore bool
	// KnownAt is when that resync began, if it is known: a workload that was created before it came to be followed later, and is a baseline.
	KnownAt time.Time

	// Workload is an observation of the workload itself.
	Workload *events.ObservedWorkload
	// Revision is an observation of a ReplicaSet or a ControllerRevision of the workload.
	Revision *events.ObservedWorkloadRevision
	// Absence says that a complete full resync lacks the workload.
	Absence *Absence
	// Released says that the cluster was taken from the project whose agents have told so far: what is told from here on is told to others.
	Released bool
}

// Absence is judged only where the state knows no version above the listing's.
type Absence struct {
	// ListVersion is the resourceVersion of the list of the workload's kind.
	ListVersion string
	// Unselected says that the watcher follows other workloads than at its last complete full resync: what is absent is no longer followed, and may be there.
	Unselected bool
}
