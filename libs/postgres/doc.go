// Package postgres connects a service to its database: pool, schema migrations, transactions, locks
// between replicas, and notifications of changes.
//
// It promises:
//
//   - A database that is down delays the start with back-off and never crashes the process. [Check]
//     reports the reason.
//   - Replicas that start at the same time run each migration once. A program that is older than
//     the schema keeps working, because migrations only add what a running version needs.
//   - One live session at a time holds a [Lock]. If the holder or its machine dies, another
//     session acquires the lock.
//   - A [Subscription] misses no change. After a lost connection it reports that every row may have
//     changed.
//
// Failure modes: a malformed connection string or a server older than [MinVersion] is an error at
// once. The holder of a lock may be paused and replaced without noticing; guard its work elsewhere
// by compare-and-set. Its work on [HeldLock.Conn] fails, because lock and connection end together.
// A failed commit may have been executed.
package postgres
