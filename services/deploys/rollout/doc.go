// Package rollout derives the rollouts of one workload from its observations: when each starts and how it ends.
//
// [Advance] is pure: equal state and input give equal state and facts, byte for byte as JSON. Time comes from inputs
// only. Versions that are not newer than the known one have no effect, so duplicates, full resyncs, a second agent and
// repeated batches cause no facts.
//
// The first fact of a rollout is its only started. It has exactly one terminal fact: completed, superseded, cancelled
// or unknown. Only drained may follow the terminal fact. rolled_back and restarted directly follow started. Scaling is
// not a rollout. A workload that existed before the first observation is a baseline: it causes no facts, except that
// the start of a rollout in flight is reconstructed.
//
// Observations of a workload and of its ReplicaSets or ControllerRevisions may arrive in any order; the versions of one
// object must arrive in order. Changes during a period without observations are reconstructed or reported in a gap.
// Revision numbers may repeat or decrease.
//
// Pods of the newest revision that do not start explain a stall. The rules are in explain.go.
//
// The size of a state is limited. Malformed input has no effect.
package rollout
