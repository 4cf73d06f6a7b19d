// Package rollout decides which rollouts the observations of one workload mean: when each starts and how it ends.
//
// [Advance] is pure: equal state and input give equal state and facts, byte for byte as JSON. Time comes from inputs
// only. Versions that are not newer than the known one have no effect, so duplicates, full resyncs, a second agent and
// repeated batches are silent.
//
// Each rollout has exactly one started, as its first fact, and exactly one terminal fact: completed, superseded,
// cancelled or unknown. rolled_back and restarted follow their started directly. Only drained may follow the end.
// Scaling is never a rollout. A workload that existed before is a silent baseline; the start of its rollout in flight
// is reconstructed.
//
// A workload and its ReplicaSets or ControllerRevisions may arrive in any order relative to each other, the versions of
// each object in order. What nobody observed is reconstructed, or named in a gap. Revision numbers may repeat or fall.
//
// A state is bounded. Malformed input has no effect.
package rollout
