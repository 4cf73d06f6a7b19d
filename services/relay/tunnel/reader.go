package tunnel

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// read parses frames until the connection ends. Bytes may arrive in pieces of any size.
func (s *Session) read() error {
	var (
		raw  [headerSize]byte
		have int // bytes of raw
		h    frameHeader
		left int    // bytes of h's payload
		part []byte // of a payload that is handled whole
	)
	for {
		data, err := s.ws.next()
		if err != nil {
			return err
		}
		for len(data) > 0 {
			if left == 0 {
				n := copy(raw[have:], data)
				have += n
				data = data[n:]
				if have < headerSize {
					break
				}
				have = 0
				h = parseHeader(raw[:])
				left = h.length
				if left == 0 {
					if err := s.handle(h, nil); err != nil {
						return err
					}
					continue
				}
			}
			n := min(left, len(data))
			chunk := data[:n]
			data = data[n:]
			left -= n
			switch {
			case h.kind == frameData:
				err = s.deliver(h.stream, chunk, n == h.length)
			case left > 0:
				part = append(part, chunk...)
			case len(part) > 0:
				err = s.handle(h, append(part, chunk...))
				part = nil
			default:
				err = s.handle(h, chunk)
			}
			if err != nil {
				return err
			}
		}
	}
}

func (s *Session) stream(id uint32) *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[id]
}

// deliver passes data to a stream. whole reports whether data is a complete frame.
func (s *Session) deliver(id uint32, data []byte, whole bool) error {
	st := s.stream(id)
	if st == nil {
		return nil // the stream was reset; the peer has not received the reset yet
	}
	if s.unsignaled != st {
		s.wakeStreamReader()
	}
	err := st.deliver(data, whole)
	s.cfg.Budget.enforce()
	return err
}

// wakeStreamReader wakes the reader of the last stream that received data. The wake-up is delayed until another stream
// gets data or the socket is read again, so that the reader gets larger chunks.
func (s *Session) wakeStreamReader() {
	if s.unsignaled != nil {
		s.unsignaled.readable.Signal()
		s.unsignaled = nil
	}
}

// handle handles any frame but data. An error ends the session.
func (s *Session) handle(h frameHeader, payload []byte) error {
	st := s.stream(h.stream) // nil for frames of the session, and after a reset
	switch h.kind {
	case frameOpen:
		return s.handleOpen(h.stream, payload)
	case frameData: // empty
	case frameEnd:
		if st != nil {
			st.handleEnd()
		}
	case frameAccepted:
		if st != nil {
			st.handleAccepted()
		}
	case frameReset:
		if st != nil {
			st.fail(decodeReset(payload))
			s.remove(st)
		}
	case frameWindow:
		if len(payload) != 4 {
			return fmt.Errorf("the other side sent a window of %d bytes instead of 4", len(payload))
		}
		if st != nil {
			st.addWindow(int(binary.BigEndian.Uint32(payload)))
		}
	case frameSettings:
		return s.handleSettings(payload)
	case frameDrain:
		if !isClosed(s.peerDraining) { // only the reader closes it
			close(s.peerDraining)
			go s.answerDrain()
		}
	case frameDrained:
		s.mu.Lock()
		s.peerDrained = isClosed(s.draining)
		s.mu.Unlock()
		s.closeIfDrained()
	default:
		return fmt.Errorf("the other side sent a frame of unknown kind %d", h.kind)
	}
	return nil
}

func (s *Session) handleOpen(id uint32, metadata []byte) error {
	if len(metadata) > maxMetadata || id == 0 || s.isOwn(id) {
		return fmt.Errorf("the other side opened stream %d with %d bytes of metadata", id, len(metadata))
	}
	s.mu.Lock()
	var reason Reason
	var text string
	switch {
	case s.err != nil:
		s.mu.Unlock()
		return s.err
	case s.streams[id] != nil:
		s.mu.Unlock()
		return fmt.Errorf("the other side opened stream %d twice", id)
	case isClosed(s.draining):
		reason, text = NotAccepted, ErrDraining.Error()
	case s.accepted >= s.cfg.MaxStreams:
		reason, text = Overloaded, "too many streams"
	}
	if reason != 0 {
		s.mu.Unlock()
		return s.post(frameHeader{kind: frameReset, stream: id}, (&ResetError{Reason: reason, Text: text}).encode())
	}
	st := newStream(s, id, append([]byte(nil), metadata...))
	s.streams[id] = st
	s.accepted++
	s.mu.Unlock()
	go s.accept(st)
	return nil
}

// handleSettings adjusts the windows of open streams by the difference.
func (s *Session) handleSettings(payload []byte) error {
	var window int
	if len(payload) == 4 {
		window = int(binary.BigEndian.Uint32(payload))
	}
	if window < minWindow || window > maxWindow || s.hasSettings {
		return fmt.Errorf("the other side sent invalid settings: % x", payload)
	}
	s.hasSettings = true
	s.mu.Lock()
	more := window - s.peerWindow
	s.peerWindow = window
	streams := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	for _, st := range streams {
		st.addWindow(more)
	}
	if !s.ws.dialled {
		s.sendSettings()
	}
	return nil
}

func (s *Session) sendSettings() {
	window := binary.BigEndian.AppendUint32(nil, uint32(s.cfg.Window))
	_ = s.post(frameHeader{kind: frameSettings}, window) // it fits: little is pending at the start
}

// answerDrain sends frameDrained after the frames of streams that are being opened.
func (s *Session) answerDrain() {
	s.opening.Lock()
	defer s.opening.Unlock()
	_ = s.send(frameHeader{kind: frameDrained}, nil) // an error ends the session
}

func (s *Session) sendPong(payload []byte) {
	s.writeMu.Lock()
	s.pong = append([]byte{}, payload...) // only the last one is answered (RFC 6455, section 5.5.3)
	s.flushAndUnlock()
}
