// Package dispatcher is the service that applies the desired states of an agent's workspaces in its
// cluster and reports the results.
//
// It promises that the latest desired state is applied in the end, wherever the process is stopped:
// every leader reads all desired states again, each step is repeatable ([kube]), and a lower
// revision never replaces a higher one. The revisions of a workspace run in order, one at a time;
// different workspaces run in parallel, and a failing one delays no other ([queue]). A failure is
// reported with a reason and a sentence for the user ([failure]) and retried with back-off per
// workspace. Only what the agent itself refuses ([desired]) waits for the next revision.
//
// A repair applies every workspace again, after all other work: on a resync request of the control
// plane and at the configured interval. It reverts changes of others and reports only what it
// repaired. It reports a temporary failure only when that lasts.
//
// Results are published at least once, in order per workspace ([nats]). While NATS is down, work
// continues and results wait. While the API server is down, everything waits. One dispatcher per
// agent leads; a lost lease ends its work before another one starts. Agents cannot publish to DEAD,
// so a desired state without a readable workspace and revision is logged and counted
// (lockstep_dispatcher_dropped_total).
package dispatcher
