// Package postgres loads and stores the state of the service: workloads, environments, facts, history and ownership.
//
// [Batch] stores a batch of ingest in the transaction that moves the cursor. One reader writes at a time. The commit
// does not wait for the disk: after a crash of the server, lost batches are repeated, because the cursor is lost too.
//
// [Rollouts] and [Clusters] serve the API, [Changes] notifies of changed rollouts, [StoredFacts] reads facts for
// publication. [Shadow] is a temporary second set of the tables, for a rebuild.
package postgres
