package tunnel

import (
	"errors"
	"runtime"
)

// send writes a frame, together with what others write at the same time. It returns when the frame is on its way or somebody is writing it.
func (s *Session) send(h header, payload []byte) error {
	s.out.Lock()
	for len(s.pending) > maxPending && s.broken == nil {
		s.room.Wait()
	}
	if s.broken != nil {
		s.out.Unlock()
		return s.broken
	}
	s.add(h, payload)
	if s.flushing {
		s.out.Unlock()
		return nil
	}
	s.flushing = true
	crowded := s.crowded
	s.out.Unlock()
	if crowded {
		runtime.Gosched() // who is ready to write goes along
	}
	return s.flush()
}

// post is send for who reads, and must not wait for what is written: if both sides did, neither would read.
func (s *Session) post(h header, payload []byte) error {
	s.out.Lock()
	if len(s.pending) > maxAnswers {
		s.out.Unlock()
		return errors.New("the other side asks and does not read the answers")
	}
	s.add(h, payload)
	s.rouse()
	return nil
}

// rouse has what waits written by somebody. It unlocks s.out.
func (s *Session) rouse() {
	defer s.out.Unlock()
	if !s.flushing && s.broken == nil {
		s.flushing = true
		go s.flush() //nolint:errcheck // the session ends with the error
	}
}

// add puts a frame to what waits, or as many as are needed. The first leaves space for the header of a message.
func (s *Session) add(h header, payload []byte) {
	s.frames++
	if n := maxWireHeader + len(payload) + headerSize*(1+len(payload)/fullPayload); len(s.pending)+n > smallBuffer {
		s.pending, _ = grow(s.pending, 0, n)
	}
	if len(s.pending) == 0 {
		s.pending = append(s.pending, make([]byte, maxWireHeader)...)
	}
	for {
		h.length = min(len(payload), fullPayload)
		s.pending = append(h.append(s.pending), payload[:h.length]...)
		if payload = payload[h.length:]; len(payload) == 0 {
			return
		}
	}
}

// flush writes what waits until nothing does.
func (s *Session) flush() error {
	s.out.Lock()
	for {
		batch, pong, ping := s.pending, s.pong, s.ping
		if len(batch) == 0 && pong == nil && !ping {
			last := s.last
			s.flushing = last
			s.pending, s.spare = shrink(s.pending), shrink(s.spare)
			s.out.Unlock()
			if last {
				_ = s.wire.sendControl(opClose, normalClosure()) // it ends in any case
				s.fail(errLeft)
			}
			return nil
		}
		s.pending, s.pong, s.ping = s.spare[:0], nil, false
		s.crowded, s.frames = s.frames > 1, 0
		s.room.Broadcast()
		s.out.Unlock()
		err := s.write(batch, pong, ping)
		s.out.Lock()
		s.spare = batch
		if err != nil {
			s.flushing = false
			s.out.Unlock()
			s.fail(err)
			return err
		}
	}
}

func (s *Session) write(batch, pong []byte, ping bool) error {
	if pong != nil {
		if err := s.wire.sendControl(opPong, pong); err != nil {
			return err
		}
	}
	if ping {
		if err := s.wire.sendControl(opPing, nil); err != nil {
			return err
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return s.wire.send(batch)
}
