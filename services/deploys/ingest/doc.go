// Package ingest processes batches of observations and publishes the facts that follow from them.
//
// [Processor.Process] loads the state that a batch of messages of OBSERVED needs. It drops or rejects messages about
// clusters of other projects, and applies the other messages in stream order. It publishes the facts, and saves states,
// facts and history in the caller's transaction.
//
// The facts depend only on the stream, not on batch sizes, crashes or replicas. Facts are published before the commit.
// A repeated batch derives the same facts, and package publish skips those that the stream already has. Facts of
// environments follow the facts of their members.
//
// A missing workload is treated as deleted only after a complete full resync, as package agents decides. A rebuild and
// a replay run the same code with another [Store] and without a [Publisher].
package ingest
