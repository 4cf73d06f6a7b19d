// Package sink delivers facts about deploys to destinations such as Slack, GitHub, BigQuery and
// webhooks.
//
// Each sink has a durable consumer sink-<name> on DEPLOYS, so a slow sink delays no other. The replica of the service
// that holds an advisory lock delivers. When it stops, another replica continues at the same position. Promises:
//
//   - A fact that passes the filter is delivered or dead-lettered before the consumer's position
//     passes it. After a crash it may be delivered twice, with the same key.
//   - A thread is what a sink delivers in order, one fact at a time, such as the facts of a rollout.
//     A failing thread delays no other. Its first fact is dead-lettered after Retry.GiveUp, or
//     earlier if too many facts of the thread wait while other threads succeed.
//   - While every delivery fails, facts wait on the stream.
//   - A sink with [Traits].Latest receives all waiting facts of a thread as one delivery.
//   - Sinks with the same credential share the rate limits of the destination and wait for its
//     Retry-After.
//   - `lockstep dead retry` and [Set.Resend] publish a fact on SINKS. DEPLOYS has each fact once.
//
// PostgreSQL keeps deliveries for a week and threads for 400 days.
package sink
