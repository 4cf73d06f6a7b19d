// Package tunnel carries many streams over one connection. An agent dials it, so that a relay reaches the agent behind
// a firewall; relays also dial each other.
//
// A [Session] is one side of a connection. Frames travel in binary WebSocket messages; a proxy may split or delay
// messages. A [Stream] is a [net.Conn] that supports half-close, and opens without a round trip.
//
// The bytes of a stream arrive in order, or the stream fails. A sender never exceeds the receiver's window: if
// a reader stops, only its own writer blocks, and the stream uses at most one window of memory; all streams together
// use at most the [Budget]. Reading never
// waits for writing, so two sides with full buffers do not deadlock. A connection is closed with its
// streams after two ping intervals without data. A protocol error ends the session. A stream that is opened
// during a drain is reset with [NotAccepted].
package tunnel

import (
	"encoding/binary"
	"strings"
)

// Subprotocol of the WebSocket.
const Subprotocol = "tunnel.lockstep.dev.v1"

// The protocol. Either side opens streams; the dialling side uses odd stream ids.
//
//	dialling side                     accepting side
//	   ├─ settings ─────────────────────►┤
//	   │◄──────────────────── settings ─┤    until settings arrive, a stream's window is 64 KiB
//	   │◄────────────────── open, data… ┤
//	   ├─ accepted, data…, end ─────────►┤    accepted: the target was reached, or is the Kubernetes API
//	   │◄────────────── window…, data…, end   either side may reset the stream instead, with a reason
//	   │◄────────────────────────── drain┤    the sender accepts no more streams
//	   ├─ drained ──────────────────────►┤    the sender opens no more; the session ends with its last stream
//
// A frame is a header and a payload:
//
//	byte 0     kind
//	byte 1     0
//	bytes 2-3  length of the payload, big endian
//	bytes 4-7  stream id, big endian; 0 in frames of the session
const (
	frameOpen     kind = iota + 1 // stream; payload: metadata, at most maxMetadata
	frameData                     // stream; payload: bytes
	frameEnd                      // stream; the sender sends no more bytes
	frameReset                    // stream; payload: Reason (1 byte), then a text of at most maxReason bytes
	frameWindow                   // stream; payload: how many more bytes the receiver may send (4 bytes)
	frameDrain                    // session
	frameDrained                  // session; answers frameDrain
	frameAccepted                 // stream; its target was reached, or is the Kubernetes API
	frameSettings                 // session, once, at the start; payload: the window of each stream (4 bytes)
)

const (
	headerSize = 8
	// fullPayload of a data frame. Four frames, with WebSocket and TLS around them, fill one coalesced write.
	fullPayload = 65424
	maxMetadata = 16 << 10
	maxReason   = 256
	// minWindow and maxWindow that settings may have, in bytes.
	minWindow = 64 << 10
	maxWindow = 64 << 20
)

// kind of a frame.
type kind uint8

type frameHeader struct {
	kind   kind
	length int
	stream uint32
}

func (h frameHeader) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, byte(h.kind), 0, byte(h.length>>8), byte(h.length)), h.stream)
}

func parseHeader(b []byte) frameHeader {
	return frameHeader{
		kind: kind(b[0]), length: int(binary.BigEndian.Uint16(b[2:])), stream: binary.BigEndian.Uint32(b[4:]),
	}
}

// Reason of a reset.
type Reason uint8

const (
	// Cancelled means the user of the stream no longer needs it.
	Cancelled Reason = iota + 1
	// NotAccepted means the stream cannot be accepted here: try elsewhere. Its target received nothing.
	NotAccepted
	// Overloaded means there are too many streams: try elsewhere. Its target received nothing.
	Overloaded
	// Refused means the target is not allowed, or does not exist.
	Refused
	// Unreachable means the agent could not connect to the target.
	Unreachable
	// TargetConnectionLost means the connection to the target failed.
	TargetConnectionLost
)

// ResetError is the error of a stream that the other side reset.
type ResetError struct {
	Reason Reason
	Text   string
}

func (e *ResetError) Error() string { return "stream reset by peer: " + e.Text }

func (e *ResetError) encode() []byte {
	return append([]byte{byte(e.Reason)}, e.Text[:min(len(e.Text), maxReason)]...)
}

func decodeReset(payload []byte) *ResetError {
	if len(payload) == 0 {
		return &ResetError{Reason: TargetConnectionLost, Text: "without a reason"}
	}
	text := strings.ToValidUTF8(string(payload[1:min(len(payload), 1+maxReason)]), "?")
	return &ResetError{Reason: Reason(payload[0]), Text: text}
}
