// Package tunnel carries many streams over one connection that an agent has dialled, so that a relay can reach the agent where nobody else can.
//
// A [Session] is one side of such a connection. What travels are frames of streams inside binary WebSocket messages: proxies in between may look into, split or delay messages. A
// [Stream] is a [net.Conn] whose directions end separately; it opens without a round trip.
//
//	who dials                         who is dialled
//	   ├─ settings: my window ──────────►┤
//	   │◄────────── settings: my window ─┤    until it is known, a stream may have 64 KiB under way
//	   │◄────────────────── open, data … ┤    either side opens streams
//	   ├─ taken, data …, end ───────────►┤    taken: what the stream is for was reached
//	   │◄──────────────── window, …, end ┤    or reset, by either side, with a reason
//	   │◄────────────────────────── drain┤    no new streams, please
//	   ├─ drained ──────────────────────►┤    there will be none; the session ends with its last stream
//
// It promises: the bytes of a stream arrive in order, or the stream fails. A side sends no more of a stream than its window before the other has read it: a reader that has stopped
// stops its own writer, holds up no other stream, and costs one window of memory. Frames that are ready at the same time go in one write. A connection that gives no sign of life is
// given up, and every stream of it with it. What the other side sends against the protocol ends the session and nothing else. A stream that comes while its session is drained is
// reset as untaken, so that it can be had elsewhere.
//
// Reading never waits for writing, so that two sides that are both full go on.
//
// # Why like this
//
// Measured before it was written, as processor time of relay and agent for one request of 1 KB, 32 clients with kept connections, two cores: a connection for each stream, parked until it is
// claimed, costs at least two copies between TCP connections, 60 to 68 µs; frames of all streams in one connection, written together, 3 µs in the relay for the tunnel itself and 21 µs in
// the agent. A thousand agents with a handful of parked connections each would also cost as many times their memory. Bulk over TLS was bound by memory (buffers that grew anew for each
// batch) and by calls of the system (one for each record of TLS); with buffers that are kept while bytes come, and records gathered ([Gather]), it is twice as fast. To wait for others
// before a write pays only while several write; a single client was slower by a fifth when it always waited.
//
// Later, as processor time beside what went before, both kinds taking turns on a busy machine, so about. A small frame that goes straight to the target's connection, from who reads the
// session (sink), costs the agent a wake-up less a request with one client, and, beside the target's time in the same turns, a quarter less; a seventh with 32, a tenth with 256. Frames of bulk must not: written one by one as TLS gives out its records,
// instead of in the half megabyte that gathers meanwhile, they cost agent and target half as much again. So does, less, to wake who reads a stream for each record, or to make a frame of each
// record of a caller's TLS; what is at hand goes together. Four frames read, encrypted and written at once (256 KiB) are a tenth cheaper than two. With all of it bulk costs an eighth to a
// sixth less, client and target included; two thirds of what remains are the system's, a quarter encryption, and copies a twentieth.
//
// Not worth it: to spare the read that finds a connection empty before it is waited for, a microsecond of forty, since waiting is only safe from within one call that holds the connection,
// and who closes it would wait for what the session writes; to renew the deadline of writes less often, 0.2 µs of a write.
package tunnel
