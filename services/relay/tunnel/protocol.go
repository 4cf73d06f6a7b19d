// Package tunnel carries many streams over one connection that an agent has dialled, so that a relay reaches the
// agent behind a firewall.
//
// A [Session] is one side of a connection. Frames travel in binary WebSocket messages; a proxy may split or delay
// messages. A [Stream] is a [net.Conn] with separate ends of its directions, and opens without a round trip.
//
// The bytes of a stream arrive in order, or the stream fails. A sender never exceeds the receiver's window: a reader
// that stops blocks its own writer, no other stream, and costs one window of memory. Reading never waits for
// writing, so two full sides do not deadlock. A silent connection is closed with its streams after two pings. A
// protocol error ends the session. A stream that is opened during a drain is reset as retryable.
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
//	   ├─ accepted, data…, end ─────────►┤    accepted: the stream's target was reached
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
	frameOpen     kind = iota + 1 // stream; payload: the head, at most maxHead
	frameData                     // stream; payload: bytes
	frameEnd                      // stream; the sender sends no more bytes
	frameReset                    // stream; payload: Reason (1 byte), then a text of at most maxReason bytes
	frameWindow                   // stream; payload: how many more bytes the receiver may send (4 bytes)
	frameDrain                    // session
	frameDrained                  // session; answers frameDrain
	frameAccepted                 // stream; its target was reached
	frameSettings                 // session, first frame; payload: the window of each stream (4 bytes)
)

const (
	headerSize = 8
	// fullPayload of a data frame. Four frames, with WebSocket and TLS around them, fill one coalesced write.
	fullPayload = 65424
	maxHead     = 16 << 10
	maxReason   = 256
	// minWindow and maxWindow that settings may have, in bytes.
	minWindow = 64 << 10
	maxWindow = 64 << 20
)

// kind of a frame.
type kind uint8

type header struct {
	kind   kind
	length int
	stream uint32
}

func (h header) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, byte(h.kind), 0, byte(h.length>>8), byte(h.length)), h.stream)
}

func parseHeader(b []byte) header {
	return header{
		kind: kind(b[0]), length: int(binary.BigEndian.Uint16(b[2:])), stream: binary.BigEndian.Uint32(b[4:]),
	}
}

// Reason of a reset.
type Reason uint8

const (
	// Cancelled is that the user of the stream no longer needs it.
	Cancelled Reason = iota + 1
	// NotHere is that the stream cannot be accepted here: try elsewhere.
	NotHere
	// Overloaded is that there are too many streams: try elsewhere.
	Overloaded
	// Refused is that the target is not allowed, or does not exist.
	Refused
	// Unreachable is that the target does not answer.
	Unreachable
	// Broken is that the connection to the target failed.
	Broken
)

// ResetError ends a stream that the other side has reset.
type ResetError struct {
	Reason Reason
	Text   string
}

func (e *ResetError) Error() string { return "the other side ended the stream: " + e.Text }

// Retryable reports whether the target received nothing of the stream, so that all of it can be sent again.
func (e *ResetError) Retryable() bool { return e.Reason == NotHere || e.Reason == Overloaded }

func (e *ResetError) encode() []byte {
	return append([]byte{byte(e.Reason)}, e.Text[:min(len(e.Text), maxReason)]...)
}

func decodeReset(payload []byte) *ResetError {
	if len(payload) == 0 {
		return &ResetError{Reason: Broken, Text: "for no reason"}
	}
	text := strings.ToValidUTF8(string(payload[1:min(len(payload), 1+maxReason)]), "?")
	return &ResetError{Reason: Reason(payload[0]), Text: text}
}
