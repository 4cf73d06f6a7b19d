// Package cursor takes a JetStream stream into PostgreSQL: the handler's writes and the cursor move in one transaction, batch by batch.
//
// What is promised, each with a test of that name:
//
//   - Every message is handled exactly once as far as the database can tell, in the stream's order, through crashes at any point and
//     outages of NATS and of PostgreSQL. The database is the truth; the server keeps no position that could disagree with it.
//   - One replica reads at a time; another waits and takes over. One that was superseded commits nothing more: it works on the connection
//     that holds the lock, and the cursor moves by compare-and-set on epoch and sequence.
//   - A stream that was restored from an older copy or made anew is noticed after every reconnect: a new epoch begins,
//     [Config.Restarted] is called, and the stream is read from the start. Handlers order by what the messages say, so reading again is harmless.
//   - A message that cannot be decoded, or that the handler calls [DeadLetterError], is on DEAD, with the reason, before the cursor passes it. While
//     DEAD cannot be written, the consumer waits. Any other error of the handler is taken for one that passes: the batch is
//     repeated with back-off, for ever.
//   - [Consumer.Replay] reads a stretch again through the same Decode and Handle, elsewhere, in bounded memory, without a trace but what the handler writes.
//     [Consumer.LockPosition] keeps the live reader where it is meanwhile.
//
// The consumer on the server is ephemeral and without acknowledgements: nothing is redelivered, so nothing comes out of order; a gap in
// its numbering makes a new one from the cursor on. Lag is a metric. Failure modes are said by [Consumer.Check].
package cursor
