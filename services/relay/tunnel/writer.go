package tunnel

import (
	"errors"
	"runtime"
)

const (
	// maxPending is how many bytes wait for the connection before senders block.
	maxPending = 256 << 10
	// maxPendingFromReader is how many bytes may wait when the reader adds an answer. A peer that sends and never reads is
	// disconnected.
	maxPendingFromReader = 4 * maxPending
)

// send writes a frame, together with those of other goroutines. It returns when the frame is written. While another
// goroutine is writing, it returns at once: that goroutine writes this frame, too.
func (s *Session) send(h frameHeader, payload []byte) error {
	s.writeMu.Lock()
	for len(s.pending) > maxPending && s.writeErr == nil {
		s.capacity.Wait()
	}
	if s.writeErr != nil {
		s.writeMu.Unlock()
		return s.writeErr
	}
	s.add(h, payload)
	if s.flushing {
		s.writeMu.Unlock()
		return nil
	}
	s.flushing = true
	concurrent := s.concurrent
	s.writeMu.Unlock()
	if concurrent {
		runtime.Gosched() // let others add their frames
	}
	return s.flush()
}

// post is a non-blocking send. The reader uses it: if both readers blocked on writes, the session would deadlock.
func (s *Session) post(h frameHeader, payload []byte) error {
	s.writeMu.Lock()
	if len(s.pending) > maxPendingFromReader {
		s.writeMu.Unlock()
		return errors.New("the peer does not read: too many pending bytes")
	}
	s.add(h, payload)
	s.flushAndUnlock()
	return nil
}

// flushAndUnlock starts a goroutine that flushes, unless there is one. It unlocks s.writeMu.
func (s *Session) flushAndUnlock() {
	defer s.writeMu.Unlock()
	if !s.flushing && s.writeErr == nil {
		s.flushing = true
		go s.flush() //nolint:errcheck // an error ends the session
	}
}

// add appends a frame to pending, or several for a large payload. It leaves space for the header of the message.
// It is called with s.writeMu held.
func (s *Session) add(h frameHeader, payload []byte) {
	s.frames++
	n := maxWebSocketHeader + len(payload) + headerSize*(1+len(payload)/fullPayload)
	if len(s.pending)+n > smallBuffer {
		s.pending, _ = grow(s.pending, 0, n)
	}
	if len(s.pending) == 0 {
		s.pending = append(s.pending, make([]byte, maxWebSocketHeader)...)
	}
	for {
		h.length = min(len(payload), fullPayload)
		s.pending = append(h.append(s.pending), payload[:h.length]...)
		if payload = payload[h.length:]; len(payload) == 0 {
			return
		}
	}
}

// flush writes until nothing is pending.
func (s *Session) flush() error {
	s.writeMu.Lock()
	for {
		batch, pong, ping := s.pending, s.pong, s.ping
		if len(batch) == 0 && pong == nil && !ping {
			closing := s.closing
			s.flushing = closing // stays true before a close message: nothing may follow it
			s.pending, s.spare = shrink(s.pending), shrink(s.spare)
			s.writeMu.Unlock()
			if closing {
				_ = s.ws.sendControl(opClose, normalClosure()) // the session ends in any case
				s.fail(errDrained)
			}
			return nil
		}
		s.pending, s.pong, s.ping = s.spare[:0], nil, false
		s.concurrent, s.frames = s.frames > 1, 0
		s.capacity.Broadcast()
		s.writeMu.Unlock()
		err := s.write(batch, pong, ping)
		s.writeMu.Lock()
		s.spare = batch
		if err != nil {
			s.flushing = false
			s.writeMu.Unlock()
			s.fail(err)
			return err
		}
	}
}

func (s *Session) write(batch, pong []byte, ping bool) error {
	if pong != nil {
		if err := s.ws.sendControl(opPong, pong); err != nil {
			return err
		}
	}
	if ping {
		if err := s.ws.sendControl(opPing, nil); err != nil {
			return err
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return s.ws.send(batch)
}
