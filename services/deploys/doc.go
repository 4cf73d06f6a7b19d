// Package deploys is the service that tells everyone when a deploy starts and how it ends, exactly once.
//
// It reads what watchers observe of workloads (stream OBSERVED), decides by a pure function which rollouts that means, and publishes each fact
// once on DEPLOYS as a CDEvent. Sinks carry facts to where people look; the history of rollouts is kept in PostgreSQL.
//
// [Main] puts the service together. What a rollout is decides package rollout, what an environment is environment, how a fact is written cdevent, what people see of it
// history: all pure. Around them are the adapters: nats (the reader, publishing, rebuild), postgres (tables), api (the API), sink.
//
// It promises: the same stream gives the same facts, whoever reads it, however often, after whichever crash; each is on DEPLOYS once and in order. Two replicas
// may run: one reads, the other answers people and takes over. While NATS or PostgreSQL is away, it waits, and says so in /readyz.
package deploys
