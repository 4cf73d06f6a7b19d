package ingest

import (
	"encoding/json"

	"lockstep.internal/schemas/gen/events"
)

// Watchers of version 0.1 publish observed.deployment.v1 and observed.replicaset.v1. Both are subsets of
// observed.workload.v1 and observed.workload_revision.v1, and neither has a kind.

// fromDeployment converts an observed.deployment.v1.
func fromDeployment(d events.ObservedDeployment) events.ObservedWorkload {
	return events.ObservedWorkload{
		Object: d.Object, Kind: events.WorkloadKindDeployment, Generation: d.Generation, Revision: d.Revision,
		SpecReplicas: d.SpecReplicas, Paused: d.Paused,
		HasStatus: d.HasStatus, ObservedGeneration: d.ObservedGeneration, Conditions: d.Conditions,
		Replicas: d.Replicas, UpdatedReplicas: d.UpdatedReplicas, ReadyReplicas: d.ReadyReplicas,
		AvailableReplicas: d.AvailableReplicas, UnavailableReplicas: d.UnavailableReplicas,
		TerminatingReplicas: d.TerminatingReplicas,
	}
}

// fromReplicaSet converts an observed.replicaset.v1, which lacks the UID of the Deployment.
func fromReplicaSet(r events.ObservedReplicaSet) events.ObservedWorkloadRevision {
	return events.ObservedWorkloadRevision{
		Object: r.Object, Kind: events.WorkloadRevisionKindReplicaset, Workload: r.Deployment,
		Revision: r.Revision, TemplateHash: r.PodTemplateHash,
	}
}

// storedWorkload clears the fields that observed.deployment.v1 does not have, so that both types store the same data.
// A rebuild then finds no difference if only one of the two events is left in the stream.
func storedWorkload(w events.ObservedWorkload) events.ObservedWorkload {
	w.SkippedVersions, w.Unselected, w.Template, w.TemplateGeneration = 0, false, nil, 0
	w.Strategy, w.Partition, w.ProgressDeadlineSeconds, w.MinReadySeconds = "", 0, nil, 0
	w.CurrentRevision, w.UpdateRevision = "", ""
	return w
}

// storedRevision clears the fields that observed.replicaset.v1 does not have.
func storedRevision(r events.ObservedWorkloadRevision) events.ObservedWorkloadRevision {
	r.WorkloadUID, r.RevisionHistory = "", nil
	return r
}

// DecodeStoredDeployment decodes the data of a stored Deployment. It has no kind if version 0.1 stored it, or
// if the watcher could not send the object.
func DecodeStoredDeployment(data []byte) (events.ObservedWorkload, error) {
	return decodeStored(data, fromDeployment, func(w events.ObservedWorkload) bool { return w.Kind != "" })
}

// DecodeStoredReplicaSet decodes the data of a stored ReplicaSet.
func DecodeStoredReplicaSet(data []byte) (events.ObservedWorkloadRevision, error) {
	return decodeStored(data, fromReplicaSet, func(r events.ObservedWorkloadRevision) bool { return r.Kind != "" })
}

func decodeStored[Old, New any](data []byte, convert func(Old) New, hasKind func(New) bool) (New, error) {
	var now New
	if err := json.Unmarshal(data, &now); err != nil || hasKind(now) {
		return now, err //nolint:wrapcheck // the caller names the object
	}
	var old Old
	err := json.Unmarshal(data, &old)
	return convert(old), err
}
