// Package dispatcher is the service that applies in a cluster what the control plane desires of an agent's workspaces, and tells
// what became of it.
//
// It promises that what is desired last is brought about in the end, however often it is stopped at whatever point: every leader is
// told all desired states anew, each step can be repeated ([kube]), and a lower revision never replaces a higher one. A
// workspace's desired states are worked on one at a time, in order; different workspaces in parallel, and no trouble of one delays another ([queue]).
// Failures are told with a reason and a sentence for the user ([failure]) and tried again with pauses of the workspace's own; only what the
// agent itself refuses ([desired]) waits for the next revision.
//
// What somebody else changes or deletes is applied again when the control plane asks for a full resync, and as often as the agent is configured to do one:
// everything is gone through once more, behind all other work, and told only where something was found. A failure then that usually passes is not
// the workspace's until it lasts.
//
// Results are told at least once, in order per workspace ([nats]). Without NATS, work in the queue goes on and results wait; without the API
// server everything waits. One dispatcher per agent works at a time; losing the lease stops all work before another can have it.
//
// A desired state that cannot be read is told as a failure where it at least names the workspace and a revision; agents may not write to the
// stream of dead messages, so otherwise it is logged and counted (lockstep_dispatcher_dropped_total).
package dispatcher
