// Package deploys is the service that publishes when each deploy starts and how it ends, exactly once.
//
// It reads OBSERVED, decides which rollouts the observations mean, publishes each fact once on DEPLOYS as a CDEvent,
// delivers facts to sinks, and keeps the history of rollouts in PostgreSQL.
//
// Pure packages decide: observation, agents, ownership, rollout, environment, history, ingest, publish. Packages nats,
// postgres and api are the adapters, sink delivers, rebuild rebuilds the tables. [Main] builds the adapters and lists
// the parts.
//
// Facts are a function of the stream: crashes, batches and replicas make no difference. Facts of one workload are in
// order. Of two replicas, one reads and both serve the API. While NATS or PostgreSQL is away, the service waits and
// reports it in /readyz.
package deploys
