package tunnel

import "encoding/binary"

// kind of a frame.
type kind uint8

const (
	// kindOpen begins a stream; its payload is the stream's head.
	kindOpen kind = iota + 1
	// kindData carries bytes of a stream.
	kindData
	// kindEnd says that no more bytes of the stream come from this side.
	kindEnd
	// kindReset ends a stream in both directions; its payload is why.
	kindReset
	// kindWindow lets the other side send as many bytes more as its payload says (4 bytes).
	kindWindow
	// kindDrain says that this side takes no new streams.
	kindDrain
	// kindDrained answers kindDrain: this side opens no more streams. What it has opened before came before.
	kindDrained
	// kindTaken says that what the stream was opened for has been reached.
	kindTaken
	// kindSettings says how much of a stream this side takes before it is read (4 bytes). It is the first frame of each side; until it comes, that is [minWindow].
	kindSettings
)

const (
	// headerSize is kind, a byte of zero, the payload's length (2 bytes) and the stream (4 bytes), big endian.
	headerSize = 8
	// fullPayload is that of a frame of data when there is more. Four of them, with what WebSocket and TLS put around them, are just what is gathered.
	fullPayload = 65424
	// maxHead is the largest head of a stream, maxReason the longest reason of a reset.
	maxHead   = 16 << 10
	maxReason = 256
	// minWindow is how much of a stream every side takes.
	minWindow = 64 << 10
	// maxWindow is the largest that a side may announce.
	maxWindow = 64 << 20
)

type header struct {
	kind   kind
	length int
	stream uint32
}

func (h header) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, byte(h.kind), 0, byte(h.length>>8), byte(h.length)), h.stream)
}

func parseHeader(b []byte) header {
	return header{kind: kind(b[0]), length: int(binary.BigEndian.Uint16(b[2:])), stream: binary.BigEndian.Uint32(b[4:])}
}
