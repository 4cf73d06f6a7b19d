// Package deploys is the service that publishes when each deploy starts and how it ends, exactly once.
//
// It reads observations of workloads from the stream OBSERVED and derives facts from them: a rollout started,
// completed, stalled. It publishes each fact once on the stream DEPLOYS as a CDEvent, delivers the facts to sinks, and
// keeps the history of rollouts in PostgreSQL.
//
// Pure packages decide: observation, agents, ownership, rollout, environment, history, ingest, publish. Packages nats,
// postgres and api are the adapters. Package sink delivers facts to other systems. Package rebuild recreates the tables
// from the stream. [Main] builds the adapters and lists the parts.
//
// The facts depend only on the stream, not on crashes, batch sizes or the number of replicas. Facts of one workload are
// in order. One replica reads the stream; all replicas serve the API. While NATS or PostgreSQL is unavailable, the
// service waits and reports it in /readyz.
package deploys
