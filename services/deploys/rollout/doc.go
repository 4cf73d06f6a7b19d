// Package rollout decides, from what watchers observe of one workload, which rollouts that means: when each starts, what happens to it, how it ends.
//
// [Advance] is pure: the same state and input give the same state, byte for byte as JSON, and the same facts, byte for byte. Time comes from inputs
// only. What is not above the version that is known of an object changes nothing, so duplicates, informer resyncs, full resyncs, a second agent of
// the same cluster and replays after a crash are silent.
//
// Each rollout has exactly one started, first, and exactly one terminal fact: completed, superseded, cancelled or unknown. rolled_back and restarted
// follow their started directly; only drained may come after the end. Scaling is never a rollout. What was there when a workload was first seen is
// a silent baseline, except for a rollout in flight: its start is reconstructed.
//
// Revisions are accounted for in the order in which they were taken. Numbers may repeat or fall where somebody deletes a ReplicaSet: one that is made anew goes on with
// its rollout, one of another template begins its own, with an epoch in its identity.
//
// A Deployment and its ReplicaSets, a StatefulSet and its ControllerRevisions, may arrive in any order relative to each other; each object's own
// versions in order. What nobody saw, since the watcher was down or versions were skipped, is reconstructed where something tells of it, and named
// in a gap where not.
//
// A state is bounded: 20 completed templates, the revisions of one UID, one rollout in flight. Malformed input changes nothing.
package rollout
