// Package cursor consumes a JetStream stream into PostgreSQL. The handler's writes and the cursor
// commit in one transaction per batch. Each promise has a test of its name:
//
//   - The database sees every message exactly once, in stream order, through crashes at any point
//     and outages of NATS and of PostgreSQL. The cursor in the database is the only position; the
//     server keeps none.
//   - One replica reads at a time; another waits and takes over. A superseded reader commits
//     nothing: it works on the connection that holds the lock, and moves the cursor by
//     compare-and-set on epoch and sequence.
//   - A restored or recreated stream is detected after every reconnect. A new epoch begins,
//     [Config.Restarted] is called, and the stream is read from its start. Handlers order by the
//     events, so a second reading is harmless.
//   - A message that cannot be decoded, or that the handler reports by [DeadLetterError], is on
//     DEAD with the reason before the cursor passes it. Any other error of the handler repeats the
//     batch with back-off, for ever.
//   - [Consumer.Replay] reads a range again through the same Decode and Handle, in bounded memory
//     and without other traces. [Consumer.LockPosition] keeps the live reader in place meanwhile.
//
// The consumer on the server is ephemeral and has no acknowledgements, so nothing is redelivered or
// reordered; a gap in its numbering makes a new one. The lag is a metric. [Consumer.Check] reports
// failures.
package cursor
