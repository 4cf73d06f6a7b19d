// Package outbox is a transactional outbox: it publishes messages to JetStream after their PostgreSQL transaction has
// committed.
//
// A writer locks the entity's row, changes it and calls [Insert], in one transaction. [Publisher.Run] publishes the
// messages. One replica publishes at a time. Each promise has a test of a similar name:
//
//   - Every committed message is published at least once, even after crashes and after outages of NATS and PostgreSQL.
//     Messages that are not committed are never published.
//   - On one subject the order of the stream is the order of commits. A message never appears again after a later one,
//     even when a paused publisher continues after another took over. Each publish names the subject's last sequence;
//     after a rejection the publisher reads the last message and compares revisions.
//   - Messages with the same [Config.OrderingKey] have one order across their subjects: each is sent after the one
//     before it was acknowledged. There is no order between keys. A key that fails (no stream, a full stream) delays no
//     other.
//   - An open transaction delays no other message: rows are read once they are visible, without a cursor over ids.
//   - A stream or database that was restored from an older copy is detected. [Config.Restored] then inserts the current
//     state again, in a transaction.
//
// The revision of a message is its row id. It is sent in the header [RevisionHeader], which only this package sets. A
// subject that an outbox publishes to must have no other writer.
package outbox
