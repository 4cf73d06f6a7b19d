package rollout

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Input is one input of a workload: exactly one of Workload, Revision, Pods, Absence and Released is set, or none of
// them for a tick.
type Input struct {
	// AgentID of the sender.
	AgentID int64
	// ObservedAt is the time of the watcher's clock.
	ObservedAt time.Time
	// Epoch of the cluster's resource versions. It grows when they restart at a lower value, as after a restore. Inputs of
	// a lower epoch than the state's are ignored. Inputs of a higher epoch are newer, whatever their version.
	Epoch int
	// HasBaseline reports that an earlier full resync of the agent with the same selection was complete. Then a workload
	// that has no state yet is new, and not a baseline.
	HasBaseline bool
	// BaselineAt is when that resync began; zero if unknown. A workload without a state that was created earlier is a
	// baseline: the selection did not include it before.
	BaselineAt time.Time

	// Workload is an observation of the workload.
	Workload *events.ObservedWorkload
	// Revision is an observation of a ReplicaSet or a ControllerRevision of the workload.
	Revision *events.ObservedWorkloadRevision
	// Pods is a list of pods of the workload that do not start.
	Pods *events.ObservedWorkloadPods
	// Absence reports that a complete full resync did not list the workload.
	Absence *Absence
	// Released reports that the cluster was released to another project.
	Released bool
}

// Absence reports that a full resync did not list the workload. It has no effect if a newer version than the list is
// known.
type Absence struct {
	// ListVersion is the resourceVersion of the list of the workload's kind.
	ListVersion string
	// Unselected reports that the selection changed since the last complete full resync, so the workload may still exist.
	Unselected bool
}
