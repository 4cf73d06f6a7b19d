// Package actualstate computes what a workspace is from what its cluster says. It is pure: the same input gives the same result, and time
// comes from the agent's clock only.
//
// [Compute] is a table whose first matching row wins. A finished termination beats an apply error, which beats a termination in progress, which
// beats everything the Deployment says; counts that are absent are 0, and conditions are judged by their reason, never by their status.
// A Deployment that its controller has not looked at yet is starting, not unknown. Beyond the Deployment's own word, which calls a crash-looping workspace that was complete once "starting" for ever, pods are looked at: one of
// the current ReplicaSet that cannot start, or finds no node past a patience, makes the workspace failed, and so does one that does not end
// past a patience after a stop. Both are left by themselves when the pod recovers or is gone.
//
// Every failed and error has a reason for machines and a sentence for the user. [Result.Until] says when time alone changes the result.
//
// [Expected] tells a change that the state diagram knows, with states skipped, from one that it does not. Nothing may be decided by it: the cluster is
// the truth.
package actualstate
