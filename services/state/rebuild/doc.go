// Package rebuild rebuilds the read model from the streams in temporary tables, with the code of package ingest. It
// compares the result with the live tables and replaces the rows that differ.
//
// It first replays both streams up to the cursors of the live consumers. Then it locks the cursors, replays the
// remaining messages, compares row by row, and replaces in one transaction. It publishes nothing and writes nothing to
// DEAD. User transactions are blocked only during the comparison. A canceled or killed rebuild changes nothing.
//
// Derived and compared: objects, resyncs, orphans; each agent's cluster and clock; each workspace's actual state,
// reason, message, deadline, last apply and its error, and termination. Not derived: the desired state, and the
// revisions and times of published changes.
//
// docs/decisions/0010-state-rebuild.md lists the values that a rebuild copies because they are no longer in the
// streams.
package rebuild
