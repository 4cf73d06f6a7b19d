// Package sink brings facts about deploys to where people look: each sink is a destination with a position, a filter, limits and dead letters of its own.
//
// A sink is a durable consumer sink-<name> on DEPLOYS, so a slow or broken one delays no other. One replica of the service delivers (an advisory lock);
// another takes over where it stopped. What is promised:
//
//   - A fact that passes the filter is delivered, or put on DEAD with the reason, before the position passes it. It is delivered once; after a crash between
//     the delivery and the note of it, it is delivered again under the same key, by which the destination or the sink knows it.
//   - Facts of one thread (a rollout, a group) are delivered in order, one at a time. One that is retried delays only its thread, until it is given up
//     or so many wait behind it that, while other threads get through, it is put on DEAD. When nothing gets through, everything waits on the stream.
//   - Where only the latest matters ([Traits].Latest), what waited is delivered as one.
//   - Limits are those of the destination, shared by all sinks that use the same credential; an answer that says when to come back is obeyed.
//   - What is on DEAD is delivered again by `lockstep dead retry`, and any fact by [Set.Resend]: both go through the stream SINKS, never
//     through DEPLOYS, which is a public record.
//
// Deliveries are remembered for a week, threads for 400 days: [Store] says where.
package sink
