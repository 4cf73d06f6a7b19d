// Package tunnel carries many streams over one connection that an agent has dialled, so that a relay can reach the agent where nobody else can.
//
// A [Session] is one side of such a connection. What travels are frames of streams inside binary WebSocket messages: proxies in between may look into, split or delay messages. A
// [Stream] is a [net.Conn] whose directions end separately; it opens without a round trip.
//
// It promises: the bytes of a stream arrive in order, or the stream fails. A side sends no more of a stream than its window before the other has read it: a reader that has stopped
// stops its own writer, holds up no other stream, and costs one window of memory. Frames that are ready at the same time go in one write. A connection that gives no sign of life is
// given up, and every stream of it with it. What the other side sends against the protocol ends the session and nothing else.
//
// Reading never waits for writing, so that two sides that are both full go on.
package tunnel
