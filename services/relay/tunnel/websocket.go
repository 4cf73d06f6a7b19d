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

	// initial and maximum size of the read buffer, in bytes
	readBuffer    = 2 << 10
	maxReadBuffer = 64 << 10

	// maxWebSocketHeader is two bytes, the longest length, and a mask.
	maxWebSocketHeader = 14
	// maxControl is the largest payload of a ping, a pong or a close.
	maxControl = 125
	// maxWebSocketFrame is the largest payload that is accepted.
	maxWebSocketFrame = 1 << 24
)

// normalClosure is the payload of a close message (RFC 6455, section 7.4.1).
func normalClosure() []byte { return []byte{1000 >> 8, 1000 & 0xff} }

// errClosedByPeer ends reading after a close message.
var errClosedByPeer = errors.New("closed by the other side")

// webSocket carries bytes over a WebSocket connection, as the payload of binary messages. Proxies may split messages:
// their ends mean nothing. One goroutine may read and one may write at a time.
type webSocket struct {
	// Set before the first use, then read only.
	conn net.Conn
	// out writes to conn.
	out io.Writer
	// The dialling side masks its messages, as RFC 6455 requires. Over TLS the mask is zero: middleboxes, which the
	// mask protects, do not see the payload.
	dialled, encrypted bool
	timeout            time.Duration // of a write
	// pinged is called with the payload of each ping, and must not block.
	pinged func(payload []byte)
	// beforeRead is called before the connection is read; it may be nil.
	beforeRead func()

	// Owned by the reader. buffer[begin:end] was received and not returned. The buffer grows when a read fills it;
	// idle connections keep a small one.
	buffer     []byte
	begin, end int
	// remaining bytes of the current message's payload, and their mask.
	remaining uint64
	mask      [4]byte

	// reads counts the reads of any data.
	reads atomic.Uint64
}

// next returns the next bytes, which are valid until the next call.
func (w *webSocket) next() ([]byte, error) {
	for w.remaining == 0 {
		if err := w.readHeader(); err != nil {
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

// fill reads until buffer[begin:end] has n bytes.
func (w *webSocket) fill(n int) error {
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
		if w.beforeRead != nil {
			w.beforeRead()
		}
		read, err := w.conn.Read(w.buffer[w.end:])
		w.end += read
		if read > 0 {
			w.reads.Add(1)
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

// readHeader reads the header of a WebSocket frame, and the whole of a control frame.
func (w *webSocket) readHeader() error {
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
	if first&0x70 != 0 || masked == w.dialled || length > maxWebSocketFrame {
		return fmt.Errorf("the other side sent an invalid WebSocket frame: % x", raw)
	}
	switch opcode {
	case opBinary, opContinuation:
		w.remaining = length
		return nil
	case opClose, opPing, opPong:
		return w.readControl(opcode, length)
	}
	return fmt.Errorf("the other side sent a WebSocket frame with the unknown opcode %#x", opcode)
}

func (w *webSocket) readControl(opcode byte, length uint64) error {
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

// unmask decodes data, and rotates the mask for the data after it.
func (w *webSocket) unmask(data []byte) {
	if w.mask == ([4]byte{}) {
		return
	}
	w.mask = xor(data, w.mask)
}

// xor masks or unmasks data, and returns the mask for the data after it.
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

// send writes frame[maxWebSocketHeader:] as one binary message. It writes the header into the space before, and masks
// the payload in place.
func (w *webSocket) send(frame []byte) error {
	at := w.writeHeader(frame[:maxWebSocketHeader], opBinary, len(frame)-maxWebSocketHeader)
	if mask := w.newMask(frame[:maxWebSocketHeader]); mask != ([4]byte{}) {
		xor(frame[maxWebSocketHeader:], mask)
	}
	return w.put(frame[at:])
}

// sendControl writes a ping, pong or close.
func (w *webSocket) sendControl(opcode byte, payload []byte) error {
	frame := append(make([]byte, maxWebSocketHeader, maxWebSocketHeader+maxControl), payload...)
	at := w.writeHeader(frame[:maxWebSocketHeader], opcode, len(payload))
	if mask := w.newMask(frame[:maxWebSocketHeader]); mask != ([4]byte{}) {
		xor(frame[maxWebSocketHeader:], mask)
	}
	return w.put(frame[at:])
}

func (w *webSocket) put(b []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err //nolint:wrapcheck // the connection's own
	}
	_, err := w.out.Write(b)
	return err //nolint:wrapcheck // the connection's own
}

// writeHeader writes a header at the end of space, and returns where it begins.
func (w *webSocket) writeHeader(space []byte, opcode byte, length int) int {
	end := len(space)
	var bit byte
	if w.dialled {
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

// newMask writes a mask at the end of space.
func (w *webSocket) newMask(space []byte) [4]byte {
	var mask [4]byte
	if !w.dialled {
		return mask
	}
	if !w.encrypted {
		rand.Read(mask[:]) // never fails
	}
	copy(space[len(space)-4:], mask[:])
	return mask
}
