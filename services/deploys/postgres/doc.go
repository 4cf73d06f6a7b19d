// Package postgres keeps what the service concludes from the stream OBSERVED: the state of every workload and environment, the facts, the history of
// rollouts.
//
// [Store] is written by one reader at a time, in the transaction that moves its cursor: a batch is one round trip to read and one to write; a large one is written in
// parts, while it is told.
// These transactions do not wait for the disk: a server that crashes loses the last of them whole, cursor included, and the reader takes
// them in again. What is read for people is [Rollouts]; [Changes] tells which changed. [Shadow] is a second set of tables that a rebuild fills.
package postgres
