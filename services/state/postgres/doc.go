<<<<<<< HEAD
// Package postgres is what the state service keeps: the directory, workspaces with their sealed secrets, and what their clusters say.
//
// Every change is told in the transaction that makes it, through the outbox. Rows are locked in one order: clusters, observed objects, workspaces by their
// ids; whoever locks otherwise can be made to wait for itself. Errors that callers shall see are faults; everything else says what was
// being done.
=======
// Package postgres is the state service's database: the directory, workspaces and their secrets, and what clusters said of them.
//
// What people want (directory, workspaces, secrets) is the truth here and nowhere else, and is backed up. What clusters say ([Observations]) can be
// rebuilt from the stream OBSERVED. Whatever changes is told in the transaction that changes it, through the outbox.
//
// Locks are taken in one order, so that no two transactions wait for each other: agents by id, observed objects, workspaces by id ([Workspaces.Lock],
// once per transaction). Isolation is READ COMMITTED: what is decided over is read after the lock.
//
// Errors that callers of the API shall see are faults; all others are the database's, say what was being done, and pass when it is back.
>>>>>>> core
package postgres
