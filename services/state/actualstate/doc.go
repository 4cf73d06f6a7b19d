// Package actualstate computes the actual state of a workspace from the reports of its cluster. It is pure:
// the same input gives the same result, and time is the agent's clock.
//
// [Compute] evaluates these rules in order, and the first match decides:
//
//  1. The termination is finished: terminated.
//  2. The last apply failed: error.
//  3. The termination is in progress: terminating. Error if it takes longer than its timeout. The reason is what the
//     dispatcher reports, or a pod that does not end in time.
//  4. There is no Deployment, or it has no status or no condition Progressing: unknown. Starting if it is new.
//  5. The progress deadline is exceeded: failed.
//  6. The rollout progresses: starting with 1 replica, stopping with 0.
//  7. There is no condition Available: unknown.
//  8. The rollout is complete, with 0 replicas desired and 0 available: stopped.
//  9. The rollout is complete, and all desired replicas are available: running.
//  10. The rollout is complete, with 0 replicas desired and 1 available: stopping.
//  11. The rollout is complete, with 1 replica desired and 0 available: starting.
//  12. Otherwise: unknown.
//
// A missing count is 0. Only the reason of a condition is used, not its status.
//
// If a pod crashes after a complete rollout, the Deployment alone shows "starting" forever. So pods are evaluated
// before rule 6: a pod of the current ReplicaSet that cannot start, finds no node in time, or does not end in time
// after a stop makes the workspace failed. The state changes again when the pod recovers or is deleted. A crash loop is
// one failure: it ends when the container has been ready for a while, not with each restart. While a pod waits for a
// node, starting has a reason and a message, too.
//
// Failed and error always have a machine-readable reason and a message for the user. [Expected] reports whether a
// change is in the state diagram. It is used only to mark unexpected changes.
package actualstate
