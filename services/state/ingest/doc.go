// Package ingest decides what the streams OBSERVED (reports of watchers) and APPLIED (reports of
// dispatchers) change in the database. Package nats reads the streams, package postgres implements
// [Store]; nothing here connects to either.
//
//   - decode.go reads a message and rejects what its agent may not send.
//   - observed.go applies a batch of OBSERVED: newer versions of objects, ticks, full resyncs.
//   - applied.go applies a batch of APPLIED to workspaces and to orphans that are being deleted.
//   - recompute.go locks the affected workspaces, computes their states and stores the updates.
//
// A batch is one transaction. Its result depends on the messages and their order in the stream, not on
// where batches end and not on which stream is ahead. Two exceptions: intermediate states that a batch
// skips, and the time of the first sight of an orphan. A message that can never be applied is returned
// as [Rejected]; it does not delay the others.
package ingest
