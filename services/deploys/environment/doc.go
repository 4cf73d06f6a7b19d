// Package environment derives facts about environments, such as the preview of a pull request: an environment started,
// became ready, failed or was removed. The input is the state of its workloads.
//
// A label, or an annotation of the same name, groups workloads into an environment. Any of the workloads can give the
// expected size in the annotation lockstep.dev/deploy-group-size or lockstep.dev/deploy-group-members. Without it, the
// environment is complete when nothing changes during the settle time; the facts then have settled set.
//
// A run is the rollout of one commit to the environment. Its name is the annotation lockstep.dev/commit, or else a
// digest of the images. Each run has one fact environment_started, then at most one environment_failed and at most one
// environment_ready. An environment that is complete at the first observation has no facts. A workload that is
// unselected for a while causes none. A workload with another commit delays ready and failed by the settle time.
//
// [Advance] is a pure function, like [lockstep.internal/services/deploys/rollout.Advance].
package environment
