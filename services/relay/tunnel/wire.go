package tunnel

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// Opcodes and bits of a WebSocket frame's header (RFC 6455, section 5.2).
const (
	opContinuation = 0x0
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA

	bitFinal  = 0x80
	bitMasked = 0x80
	len16     = 126
	len64     = 127

	// maxWireHeader is two bytes, the longest length, and a mask.
	maxWireHeader = 14
	// maxControl is the largest payload of a ping, a pong or a close.
	maxControl = 125
	// maxWireFrame is the most that one frame announces: what is larger is no peer of ours.
	maxWireFrame = 1 << 24
)

// normalClosure is what a close says whose work is done (RFC 6455, section 7.4.1).
func normalClosure() []byte { return []byte{1000 >> 8, 1000 & 0xff} }

// errClosedByPeer is what reading ends with when the other side has said good-bye.
var errClosedByPeer = errors.New("closed by the other side")

// wire carries bytes over a connection that has been upgraded to WebSocket, as the payload of binary messages: what lies between may parse them, split them
// or answer pings. Where a message ends means nothing.
//
// One goroutine may read and one may write at a time.
type wire struct {
	conn net.Conn
	// out writes to it.
	out io.Writer
	// masks is true on the side that dialled, which RFC 6455 wants to mask. Over TLS the mask is zero: what it protects from, a
	// middlebox that takes the payload for HTTP, cannot see the payload there.
	masks, secret bool

	// What has been read of the connection and not yet been given out. The buffer begins small, and grows when reads fill it: most connections carry little.
	buffer []byte
	begin  int
	end    int
	// What remains of the current frame's payload, and the mask at its beginning.
	remaining uint64
	mask      [4]byte

	// pinged hears the payload of each ping; it must not wait.
	pinged  func(payload []byte)
	timeout time.Duration
	// reads is told before the connection is read, unless it is nil.
	reads func()
	// heard is that something has come, whatever it is.
	heard atomic.Bool
}

// next returns the next bytes of the stream, valid until it is called again.
func (w *wire) next() ([]byte, error) {
	for w.remaining == 0 {
		if err := w.header(); err != nil {
			return nil, err
		}
	}
	if w.begin == w.end {
		if err := w.fill(1); err != nil {
			return nil, err
		}
	}
	n := int(min(uint64(w.end-w.begin), w.remaining))
	data := w.buffer[w.begin : w.begin+n]
	w.unmask(data)
	w.begin += n
	w.remaining -= uint64(n)
	return data, nil
}

// fill reads until there are n bytes at begin.
func (w *wire) fill(n int) error {
	if w.begin == w.end {
		if w.end == len(w.buffer) && w.end < maxReadBuffer {
			w.buffer = make([]byte, min(4*len(w.buffer), maxReadBuffer))
		}
		w.begin, w.end = 0, 0
	}
	if w.begin+n > len(w.buffer) {
		copy(w.buffer, w.buffer[w.begin:w.end])
		w.begin, w.end = 0, w.end-w.begin
	}
	for w.end-w.begin < n {
		if w.reads != nil {
			w.reads()
		}
		read, err := w.conn.Read(w.buffer[w.end:])
		w.end += read
		if read > 0 && !w.heard.Load() {
			w.heard.Store(true)
		}
		if w.end-w.begin >= n {
			return nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) && w.end > w.begin {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// header reads a frame's header, and the whole of a control frame.
func (w *wire) header() error {
	if err := w.fill(2); err != nil {
		return err
	}
	first, second := w.buffer[w.begin], w.buffer[w.begin+1]
	size, masked := 2, second&bitMasked != 0
	length := uint64(second &^ bitMasked)
	switch length {
	case len16:
		size += 2
	case len64:
		size += 8
	}
	if masked {
		size += 4
	}
	if err := w.fill(size); err != nil {
		return err
	}
	raw := w.buffer[w.begin : w.begin+size]
	switch length {
	case len16:
		length = uint64(binary.BigEndian.Uint16(raw[2:]))
	case len64:
		length = binary.BigEndian.Uint64(raw[2:])
	}
	w.mask = [4]byte{}
	if masked {
		copy(w.mask[:], raw[size-4:])
	}
	w.begin += size
	opcode := first & 0x0f
	if first&0x70 != 0 || masked == w.masks || length > maxWireFrame {
		return fmt.Errorf("the other side sent a WebSocket frame that no peer of this protocol sends: % x", raw)
	}
	switch opcode {
	case opBinary, opContinuation:
		w.remaining = length
		return nil
	case opClose, opPing, opPong:
		return w.takeControl(opcode, length)
	}
	return fmt.Errorf("the other side sent a WebSocket frame of kind %#x, which this protocol has not", opcode)
}

func (w *wire) takeControl(opcode byte, length uint64) error {
	if length > maxControl {
		return fmt.Errorf("the other side sent a control frame of %d bytes, more than %d", length, maxControl)
	}
	n := int(length)
	if err := w.fill(n); err != nil {
		return err
	}
	payload := w.buffer[w.begin : w.begin+n]
	w.unmask(payload)
	w.begin += n
	switch opcode {
	case opPing:
		w.pinged(payload)
	case opClose:
		return errClosedByPeer
	}
	return nil
}

// unmask gives data its meaning; the mask goes on where it ends.
func (w *wire) unmask(data []byte) {
	if w.mask == ([4]byte{}) {
		return
	}
	w.mask = xor(data, w.mask)
}

// xor masks or unmasks data, and returns the mask for what follows.
func xor(data []byte, mask [4]byte) [4]byte {
	word := binary.LittleEndian.Uint32(mask[:])
	wide := uint64(word)<<32 | uint64(word)
	i := 0
	for ; i+8 <= len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], binary.LittleEndian.Uint64(data[i:])^wide)
	}
	for j := i; j < len(data); j++ {
		data[j] ^= mask[(j-i)&3]
	}
	shift := (len(data) - i) & 3
	return [4]byte{mask[shift], mask[(shift+1)&3], mask[(shift+2)&3], mask[(shift+3)&3]}
}

// send writes frame[maxWireHeader:] as one binary message. The header goes into the space before it, and the payload is masked in place.
func (w *wire) send(frame []byte) error {
	at := w.head(frame[:maxWireHeader], opBinary, len(frame)-maxWireHeader)
	if mask := w.newMask(frame[:maxWireHeader]); mask != ([4]byte{}) {
		xor(frame[maxWireHeader:], mask)
	}
	return w.put(frame[at:])
}

// sendControl writes a ping, pong or close.
func (w *wire) sendControl(opcode byte, payload []byte) error {
	frame := append(make([]byte, maxWireHeader, maxWireHeader+maxControl), payload...)
	at := w.head(frame[:maxWireHeader], opcode, len(payload))
	if mask := w.newMask(frame[:maxWireHeader]); mask != ([4]byte{}) {
		xor(frame[maxWireHeader:], mask)
	}
	return w.put(frame[at:])
}

func (w *wire) put(b []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err //nolint:wrapcheck // who writes says to whom
	}
	_, err := w.out.Write(b)
	return err //nolint:wrapcheck // who writes says to whom
}

// head writes a frame's header so that it ends where space ends, and returns where it begins.
func (w *wire) head(space []byte, opcode byte, length int) int {
	end := len(space)
	var bit byte
	if w.masks {
		end -= 4
		bit = bitMasked
	}
	var at int
	switch {
	case length < len16:
		at = end - 2
		space[at+1] = byte(length) | bit
	case length < 1<<16:
		at = end - 4
		space[at+1] = len16 | bit
		binary.BigEndian.PutUint16(space[at+2:], uint16(length))
	default:
		at = end - 10
		space[at+1] = len64 | bit
		binary.BigEndian.PutUint64(space[at+2:], uint64(length))
	}
	space[at] = bitFinal | opcode
	return at
}

// newMask puts the mask for a frame at the end of its header's space.
func (w *wire) newMask(space []byte) [4]byte {
	var mask [4]byte
	if !w.masks {
		return mask
	}
	if !w.secret {
		rand.Read(mask[:]) // never fails
	}
	copy(space[len(space)-4:], mask[:])
	return mask
}
