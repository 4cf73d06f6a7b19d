// Package postgres is the state service's database: the directory, workspaces and their secrets, and what clusters said of them.
//
// What people want (directory, workspaces, secrets) is the truth here and nowhere else, and is backed up. What clusters say ([Observations]) can be
// rebuilt from the stream OBSERVED. Whatever changes is told in the transaction that changes it, through the outbox.
//
// Locks are taken in one order, so that no two transactions wait for each other: agents by id, observed objects, workspaces by id ([Workspaces.Lock],
// once per transaction). Isolation is READ COMMITTED: what is decided over is read after the lock.
//
// Errors that callers of the API shall see are faults; all others are the database's, say what was being done, and pass when it is back.
package postgres
