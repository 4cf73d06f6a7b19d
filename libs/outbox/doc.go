// Package outbox publishes messages to JetStream that a PostgreSQL transaction has committed.
//
// A writer locks the entity's row, changes it and calls [Insert], in one transaction.
// [Publisher.Run] publishes the messages. Of all replicas one publishes at a time. Each promise has
// a test of its name:
//
//   - Every committed message is published at least once, and no other, through crashes at any
//     point, outages of NATS and restarts of PostgreSQL.
//   - On one subject the order of the stream is the order of commits. A message never appears again
//     after a later one, even when a paused publisher continues after another took over. Each
//     publish names the subject's last sequence; after a refusal the publisher reads the last
//     message and compares revisions.
//   - There is no order between subjects. A subject that fails (no stream, a full stream) delays no
//     other.
//   - An open transaction elsewhere delays nothing: rows are read once they are visible, without a
//     cursor over ids.
//   - A stream or database that was restored from an older copy is detected. [Config.Restored] then
//     inserts the current state again, in a transaction.
//
// The revision of a message is the id of its row. It travels in the header [RevisionHeader] and
// serves this package only. A subject that an outbox publishes to must have no other writer.
package outbox
