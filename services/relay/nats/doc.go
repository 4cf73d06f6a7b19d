// Package nats keeps the registry in a key-value bucket and publishes the relay's events.
//
// [RegistryStore] writes this relay's entries to the bucket, and applies all entries to the registry. After a
// reconnect it writes missing entries again, also to a recreated bucket. Of its methods, only
// [RegistryStore.Run] and [RegistryStore.Unregister] send requests to NATS; the others block only while the event
// queue is full. The lease is one key that is refreshed; it expires after a crash, and is removed at shutdown. While
// NATS is unavailable, the registry keeps its content. After a reconnect, other relays have one lease duration to
// rewrite their entries before this relay removes them.
//
// [EventPublisher] publishes connections, disconnections and audit records. When a relay is dead, every other one
// publishes its connections as lost, and then removes their entries. If a stalled relay's connections were reported
// lost by mistake, they are reported connected again. The latest event wins.
//
// [AgentConfigs] follows the configuration of each agent.
package nats
