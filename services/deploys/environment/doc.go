// Package environment decides, from the state of the workloads that make one, when an environment
// such as the preview of a pull request begins, is ready as a whole, fails, and goes away.
//
// Workloads belong together by a label, or an annotation of the same name. How many there are says
// the annotation lockstep.dev/deploy-group-size of any of them, or
// lockstep.dev/deploy-group-members; where nobody says, a time without news decides, and the facts
// say that they are settled.
//
// A run is what one commit (annotation lockstep.dev/commit, else a digest of the images) brings.
// Each run has one environment_started and at most one of environment_ready and environment_failed
// as its last word; ready may follow failed when the workload recovers. What is complete when first
// seen is silent, and what is not followed for a while is no news when it comes back. A workload
// that still has another commit delays readiness by the settle time, as its failure does failure.
//
// [Advance] is pure, as [lockstep.internal/services/deploys/rollout.Advance] is.
package environment
