// Package targets knows what the streams that relays open may be joined with.
//
// A target is there when two agree: the agent's configuration, which people edit at the control plane and relays hand on ([Table]), names it; and the agent itself, whose own settings
// nobody outside of the cluster can change, allows its address ([Allowed]).
//
// Relays may know different revisions for a moment: the highest that a connected relay reports counts, so that a control plane that was restored from an older copy is followed, too.
// While no relay is connected, the last configuration is kept. Who uses a target ([Table.Use]) is told when a report has it no more, or elsewhere.
//
// What cannot be a target is left out, and said; it makes nothing else of the configuration void.
package targets
