// Package ingest processes the events of OBSERVED (from watchers) and APPLIED (from dispatchers).
// Package nats reads the streams, package postgres implements [Store]; nothing here connects to either.
//
//   - decode.go decodes a message and rejects what its agent is not allowed to send.
//   - conversion.go converts the events and stored data of earlier versions.
//   - observed.go processes a batch of OBSERVED: newer versions of objects, ticks, full resyncs.
//   - judgement.go stores what a full resync that has ended shows: absent objects, differing workspaces, orphans.
//   - applied.go processes a batch of APPLIED for workspaces and for orphans that are being deleted.
//   - recompute.go locks the affected workspaces, computes their states and stores the updates.
//
// A batch is one transaction. Its result depends on the messages and their order in the stream, not on batch
// boundaries and not on the relative progress of the two streams. There are two exceptions: a batch skips intermediate
// states, and the time at which an orphan was first seen depends on the batch. A message that can never be processed is
// returned as [UnprocessableError]; it does not delay the others.
package ingest
