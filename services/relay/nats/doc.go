// Package nats keeps the registry in a key-value bucket and publishes the relay's events.
//
// [RegistryStore] writes what this relay holds to the bucket, and applies what all relays write to the registry.
// It promises: what this relay holds is in the bucket within moments of its connection to NATS, also after NATS has
// lost the bucket. Only [RegistryStore.Run] waits for NATS. The lease is one key that is refreshed; it expires after
// a crash, and is removed at an orderly end. While NATS is away, what was known still counts; it is stale for one
// more lease, in which other relays come back.
//
// [EventPublisher] publishes connections, disconnections and audit records. When a relay is dead, every other one
// publishes its connections as lost, and then removes their entries. If a stalled relay's connections were reported
// lost by mistake, they are reported connected again. The latest event wins.
//
// [AgentConfigs] follows the configuration of each agent.
package nats
