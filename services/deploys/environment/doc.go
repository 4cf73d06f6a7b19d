// Package environment decides when an environment, such as the preview of a pull request, starts,
// becomes ready, fails or is removed. The input is the state of its workloads.
//
// A label, or an annotation of the same name, groups workloads into an environment. The annotation
// lockstep.dev/deploy-group-size or lockstep.dev/deploy-group-members of any of them gives the
// expected size. Without them, the environment is complete when nothing changes during the settle
// time, and its facts have settled set.
//
// A run is one commit (annotation lockstep.dev/commit, else a digest of the images). Each run has
// one environment_started and ends with at most one of environment_ready and environment_failed;
// ready may follow failed. An environment that is complete at the first observation publishes
// nothing, and neither does a workload that is unselected for a while. A workload with another
// commit delays both ready and failed by the settle time.
//
// [Advance] is a pure function, like [lockstep.internal/services/deploys/rollout.Advance].
package environment
