// Package rebuild derives the read model from the streams again: in temporary tables, with the code of
// package ingest. It compares the result with the live tables and replaces what differs.
//
// It replays both streams up to the positions of the live readers. For the rest it locks these positions,
// compares row by row, and replaces in one transaction. It publishes nothing and writes nothing to DEAD.
// Users wait only for the comparison. A canceled or killed rebuild changes nothing.
//
// Derived, and so compared, are: objects, resyncs, orphans, clusters and clocks of agents; of workspaces
// the actual state with reason, message and deadline, the last apply, its error, and the termination. The
// desired state is not derived, nor revisions and times of published changes.
//
// docs/decisions/0010-state-rebuild.md lists what a rebuild keeps although the streams do not have it.
package rebuild
