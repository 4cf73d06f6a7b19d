// Package dispatcher is the service that applies the desired states of an agent's workspaces in its
// cluster and reports the results.
//
// It promises that the latest desired state is applied eventually, even after a crash at any point: every leader reads
// all desired states again, each step is idempotent ([kube]), and a lower revision never replaces a higher one. The
// revisions of a workspace run in order, one at a time; different workspaces run in parallel, and a failing one delays
// no other ([queue], [reconcile]). A failure is reported with a reason and a message for the user ([failure]) and
// retried with back-off per workspace. A revision that the agent itself rejects ([desired]), or that is lower than the
// cluster's, is not retried.
//
// A repair applies every workspace again, with the lowest priority ([repair]). It starts on a resync request and at the
// configured interval. It reverts drift and reports only the repaired objects. It reports a temporary failure only
// after several attempts.
//
// Results are published in order per workspace; a result replaces a waiting one of the same type ([nats]). While NATS
// is down, work continues and results wait. While the API server is down, everything waits. One dispatcher per agent
// leads. When it loses the lease, it stops its work before another one becomes the leader. Agents cannot publish to
// DEAD, so a desired state without a readable workspace and revision is logged and counted
// (lockstep_dispatcher_dropped_total).
package dispatcher
