// Package actualstate computes the actual state of a workspace from the reports of its cluster. It is pure:
// the same input gives the same result, and time is the agent's clock.
//
// [Compute] is a table; the first matching row wins. A finished termination goes before an apply error, which
// goes before a termination in progress, which goes before the Deployment. Absent counts are 0. Conditions are
// judged by their reason, not by their status.
//
// A Deployment that was complete once reports "starting" forever while its pod crashes. So pods count too: a
// pod of the current ReplicaSet that cannot start, finds no node in time, or does not end in time after a stop
// makes the workspace failed. It leaves failed when the pod recovers or is gone.
//
// Failed and error always have a reason for machines and a message for the user. [Expected] reports whether
// the state diagram has a change; nothing is decided by it.
package actualstate
