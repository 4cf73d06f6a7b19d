// Package sink delivers facts about deploys to destinations such as Slack, GitHub, BigQuery and
// webhooks.
//
// Each sink is a durable consumer sink-<name> on DEPLOYS, so a slow sink delays no other. One
// replica of the service holds an advisory lock and delivers; another takes over where it stopped.
// Promises:
//
//   - A fact that passes the filter is delivered or dead-lettered before the consumer's position
//     passes it. After a crash it may be delivered twice, with the same key.
//   - Facts of one thread (a rollout, a group) are delivered in order, one at a time. A failing
//     thread delays no other. It is dead-lettered after Retry.GiveUp, or earlier if it holds too
//     many facts while other threads succeed.
//   - While every delivery fails, facts wait on the stream.
//   - A sink with [Traits].Latest receives all waiting facts of a thread as one delivery.
//   - Sinks with the same credential share the limits of the destination and obey its Retry-After.
//   - `lockstep dead retry` and [Set.Resend] publish a fact on SINKS, never on DEPLOYS, which is a
//     public record.
//
// PostgreSQL keeps deliveries for a week and threads for 400 days.
package sink
