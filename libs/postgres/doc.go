// Package postgres is how a service holds its database: a pool, the schema's migrations, transactions, and locks that
// replicas share.
//
// It promises: a database that is down is waited for with back-off, never a crash, and [Check] says why meanwhile; replicas that start at once run each
// migration once; a program that is older than the schema keeps working, since migrations only ever add what a running version
// needs; a [Lock] is held by one live session at a time and passes on when its holder, or the holder's machine, dies;
// who asks [ChangeListener] misses none, and after a lost connection is told to look at everything.
//
// Failure modes: a malformed connection string and a server older than [MinVersion] are errors at once, since waiting does not mend them.
// A holder of a lock that is paused and superseded does not know it: what it does elsewhere must be guarded there (compare-and-set);
// what it does on [HeldLock.Conn] fails, since lock and connection end together. An error of a commit leaves open whether it happened.
package postgres
