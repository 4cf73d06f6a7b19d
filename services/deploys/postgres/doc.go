// Package postgres loads and stores the state of the service: workloads, environments, facts, history and ownership.
//
// [Batch] stores a batch of ingest in the transaction that moves the cursor. One reader writes at a time. Its commits
// are asynchronous: if a crash of the server loses a batch, it loses the cursor's move too, and the batch is repeated.
//
// [Rollouts] and [Clusters] read data for the API. [Changes] notifies of changed rollouts. [StoredFacts] reads facts
// for package publish. [Shadow] is a temporary second set of the tables for a rebuild.
package postgres
