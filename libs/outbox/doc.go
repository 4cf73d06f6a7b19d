// Package outbox publishes to JetStream what a transaction in PostgreSQL has made true.
//
// A writer locks the entity's row, changes it and calls [Insert] with the messages, in one transaction. [Publisher.Run] publishes them, with
// one active publisher among all replicas. What is promised, each with a test of that name:
//
//   - Everything committed is published at least once, nothing else is, through crashes at any point, outages of NATS and restarts
//     of PostgreSQL.
//   - On one subject the stream's order is the order of commits, and a message once followed by a later one never comes again,
//     also when a publisher that was paused in the middle goes on after another has taken over. Each publish names the subject's
//     last sequence; one that is refused reads the last message and compares revisions.
//   - Between subjects there is no order, and one that fails (no stream, a full stream) delays no other.
//   - A transaction left open elsewhere delays nothing: rows are read as they become visible, with no cursor over ids.
//   - What a writer offers to the publisher of its own process is published without a way to the database, and never before what waits there: an offer
//     counts only when nothing waited when its rows were inserted, and is a hint that may be lost.
//   - A stream that was restored from an older copy, and a database that was, are noticed: [Config.Restored] is called in a transaction, to
//     insert the present truth again.
//
// The revision of a message is the id of its row, for every subject alike; it travels in the header [RevisionHeader] and serves this package only. A subject
// that an outbox publishes to has no other writer.
package outbox
