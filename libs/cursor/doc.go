// Package cursor consumes a JetStream stream into PostgreSQL. The handler's writes and the cursor
// commit in one transaction per batch. Each promise has a test of a similar name:
//
//   - Every message takes effect exactly once, in stream order, even after crashes and after outages of NATS and
//     PostgreSQL. The cursor in the database is the only position; the server stores none.
//   - One replica reads at a time; another waits and takes over. A superseded reader cannot commit: it works on the
//     connection that holds the lock, and updates the cursor with a compare-and-set on epoch and sequence.
//   - A restored or recreated stream is detected after every reconnect. A new epoch begins, [Config.Restarted] is
//     called, and the stream is read from its start. Handlers order by the versions in the events, so reading the
//     stream again is safe.
//   - A message that cannot be decoded, or that the handler reports by [DeadLetterError], is published to DEAD with
//     the reason before the cursor moves past it. So is a message whose data the database refuses (SQLSTATE classes 22,
//     23 and 54) when it is handled alone: the batch is divided, and its parts are handled in order, each in a
//     transaction of its own. Such a message is tried three times. If it violates a constraint (class 23), the reader
//     pauses between the attempts, together at most 3 s: the missing row may be stored meanwhile. After pauses in vain
//     it does not pause for a minute. After any other error of the handler the batch is retried forever, with back-off.
//   - [Consumer.Replay] reads a range again through the same Decode and Handle, in bounded memory and without other
//     effects. [Consumer.LockPosition] blocks the live reader during a replay.
//
// The consumer on the server is ephemeral and has no acknowledgements, so nothing is redelivered or reordered. After a
// gap in the consumer sequence the reader creates a new consumer. The lag is a metric. [Consumer.Check] reports
// failures.
package cursor
