// Package ingest turns observations into facts: it is what the service does with a batch of messages of OBSERVED.
//
// [Processor.Process] loads the state that a batch needs, admits messages by ownership, applies them in stream order,
// publishes the facts, and saves states, facts and history in the caller's transaction.
//
// Facts are a function of the stream alone: batch sizes, crashes and replicas make no difference. Facts are published
// before the commit; a repeated batch publishes the same facts, which package publish recognizes. Facts of
// environments follow those of their members.
//
// Absence counts only after a complete full resync, as package agents decides. A rebuild and a replay run the same
// code with another [Store] and without a [Publisher].
package ingest
