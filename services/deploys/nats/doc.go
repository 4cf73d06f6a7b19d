// Package nats connects the service to NATS.
//
// [Reader] reads the stream OBSERVED and passes batches to package ingest, within the transaction that moves the
// cursor. [Stream] publishes facts on DEPLOYS, each with the expected newest message about its workload. [Reconciler]
// republishes lost facts after each connection. [Releaser] publishes the release of a cluster on OBSERVED.
//
// The reader dead-letters malformed messages and messages about clusters of other projects. While NATS, PostgreSQL or
// the directory is unavailable, it waits and retries.
package nats
