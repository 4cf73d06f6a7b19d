package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Config of a session. The zero value has every default.
type Config struct {
	// Window is how many bytes a stream's other side may send before they are read; from 64 KiB to 64 MiB. Defaults to 512 KiB.
	Window int
	// MaxStreams that the other side may have open at a time. Defaults to 1,000.
	MaxStreams int
	// WriteTimeout is how long a write may make no progress before the connection is given up. Defaults to 30 s.
	WriteTimeout time.Duration
	// PingInterval is how often the other side is asked for a sign of life; the connection is given up when none came for two of them. Defaults to 20 s.
	PingInterval time.Duration
}

func (c Config) withDefaults() Config {
	if c.Window == 0 {
		c.Window = 512 << 10
	}
	c.Window = min(max(c.Window, minWindow), maxWindow)
	if c.MaxStreams == 0 {
		c.MaxStreams = 1000
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 30 * time.Second
	}
	if c.PingInterval == 0 {
		c.PingInterval = 20 * time.Second
	}
	return c
}

const (
	// readBuffer of a connection at first, and maxReadBuffer what it grows to.
	readBuffer    = 2 << 10
	maxReadBuffer = 64 << 10
	// maxPending is how much waits for the connection before writers wait, too.
	maxPending = 256 << 10
	// maxAnswers is how much may wait when an answer to the other side joins it: one that asks and does not read is given up.
	maxAnswers = 4 * maxPending
)

// ErrClosed is what streams end with when their connection has ended.
var ErrClosed = errors.New("the tunnel is closed")

// ErrDraining is that a session opens no new streams.
var ErrDraining = errors.New("the tunnel is being drained")

// Session is one connection between a relay and an agent, and the streams that share it. Both sides may open streams.
type Session struct {
	cfg    Config
	wire   *wire
	accept func(*Stream)

	mu      sync.Mutex
	streams map[uint32]*Stream
	window  int // of the other side
	taken   int // of streams: opened by the other side
	next    uint32
	err     error
	done    chan struct{}
	// leaving is closed when this side takes no more streams, drained when the other side has said so; left is that the other side knows.
	leaving chan struct{}
	drained chan struct{}
	left    bool
	// opening is held while a stream is opened, so that who has been told to leave can answer after the last one.
	opening sync.RWMutex
	beat    *time.Timer
	// silent is for how many beats nothing has come.
	silent int
	told   bool // the other side has told its settings
	// late is a stream to which something has come that its reader was not woken for. It is the reader's of the session.
	late *Stream

	// What waits to be written, and who writes it.
	out     sync.Mutex
	pending []byte
	frames  int // in pending
	// crowded is that several wrote at the time of the last write.
	crowded  bool
	spare    []byte
	pong     []byte
	ping     bool
	last     bool // what waits is the last
	flushing bool
	room     sync.Cond
	broken   error
}

// NewSession makes a session of a connection that has been upgraded to WebSocket. dialled says which side this is, secret that the connection is encrypted; accept is called, in a goroutine of
// its own, with each stream that the other side opens. [Session.Serve] has to run.
func NewSession(conn net.Conn, dialled, secret bool, cfg Config, accept func(*Stream)) *Session {
	cfg = cfg.withDefaults()
	s := &Session{
		cfg: cfg, accept: accept, streams: map[uint32]*Stream{}, window: minWindow, done: make(chan struct{}), leaving: make(chan struct{}), drained: make(chan struct{}),
		wire: &wire{conn: conn, out: writer(conn), masks: dialled, secret: secret, buffer: make([]byte, readBuffer), timeout: cfg.WriteTimeout},
	}
	s.wire.pinged = s.answerPing
	if g := gatheringBelow(conn); g != nil {
		g.reads = s.wakeLate
	} else {
		s.wire.reads = s.wakeLate
	}
	s.room.L = &s.out
	if dialled {
		s.next = 1
	} else {
		s.next = 2
	}
	return s
}

// Open begins a stream. It costs no round trip: what is written follows the head at once.
func (s *Session) Open(head []byte) (*Stream, error) {
	if len(head) > maxHead {
		return nil, fmt.Errorf("the head of a stream has %d bytes, more than %d", len(head), maxHead)
	}
	s.opening.RLock()
	defer s.opening.RUnlock()
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	if closed(s.leaving) || closed(s.drained) {
		s.mu.Unlock()
		return nil, ErrDraining
	}
	for s.next == 0 || s.streams[s.next] != nil { // two thousand million streams later they begin anew
		s.next += 2
	}
	st := newStream(s, s.next, head)
	s.streams[s.next] = st
	s.next += 2
	s.mu.Unlock()
	return st, s.send(header{kind: kindOpen, length: len(head), stream: st.id}, head)
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Drain says that this side takes no more streams, and opens none. What is open goes on; with the last stream the session ends.
func (s *Session) Drain() {
	s.mu.Lock()
	if closed(s.leaving) || s.err != nil {
		s.mu.Unlock()
		return
	}
	close(s.leaving)
	s.mu.Unlock()
	_ = s.send(header{kind: kindDrain}, nil) // the session tells its own end
}

// Leaving is closed when this side takes no more streams.
func (s *Session) Leaving() <-chan struct{} { return s.leaving }

// Drained is closed when the other side takes no more streams.
func (s *Session) Drained() <-chan struct{} { return s.drained }

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// answerDrain says that no more streams are opened.
func (s *Session) answerDrain() {
	s.opening.Lock()
	defer s.opening.Unlock()
	_ = s.send(header{kind: kindDrained}, nil) // the session tells its own end
}

// leave ends a session that is being drained and has no more streams. What waits to be written is written first.
func (s *Session) leave() {
	s.mu.Lock()
	over := s.left && len(s.streams) == 0 && s.err == nil
	s.mu.Unlock()
	if !over {
		return
	}
	s.out.Lock()
	s.last = true
	s.rouse()
}

// Close ends the session and its streams.
func (s *Session) Close() error {
	s.fail(ErrClosed)
	return nil
}

// Serve reads until the connection ends, and returns why.
func (s *Session) Serve() error {
	s.mu.Lock()
	if s.err == nil {
		s.beat = time.AfterFunc(s.cfg.PingInterval, s.check)
	}
	s.mu.Unlock()
	if s.wire.masks { // who was dialled says nothing first
		s.tellWindow()
	}
	s.fail(s.read())
	return s.err
}

// errLeft is why a session ended that this side has drained.
var errLeft = errors.New("it was drained")

func (s *Session) tellWindow() {
	_ = s.post(header{kind: kindSettings}, binary.BigEndian.AppendUint32(nil, uint32(s.cfg.Window))) // there is room for a first frame
}

// takeWindow of the other side: streams that are open may send more, or less, by the difference.
func (s *Session) takeWindow(n int) {
	s.mu.Lock()
	more := n - s.window
	s.window = n
	streams := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	for _, st := range streams {
		st.credit(more)
	}
	if !s.wire.masks {
		s.tellWindow()
	}
}

// check asks for a sign of life.
func (s *Session) check() {
	if s.wire.heard.Swap(false) {
		s.silent = 0
	} else if s.silent++; s.silent >= 2 {
		s.fail(fmt.Errorf("nothing came from the other side for %s", 2*s.cfg.PingInterval))
		return
	}
	s.out.Lock()
	s.ping = true
	s.rouse()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.beat.Reset(s.cfg.PingInterval)
	}
}

func (s *Session) answerPing(payload []byte) {
	s.out.Lock()
	s.pong = append([]byte{}, payload...) // the last one is enough (RFC 6455, section 5.5.3)
	s.rouse()
}

func (s *Session) fail(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if errors.Is(err, io.EOF) { // who reads a stream must not take it for the end of what was sent
		err = io.ErrUnexpectedEOF
	}
	s.err = errors.Join(ErrClosed, err)
	streams := s.streams
	s.streams = nil
	close(s.done)
	if s.beat != nil {
		s.beat.Stop()
	}
	s.mu.Unlock()
	s.out.Lock()
	s.broken = s.err
	s.room.Broadcast()
	s.out.Unlock()
	_ = s.wire.conn.Close() // it is over
	for _, st := range streams {
		st.fail(s.err)
	}
}

// read takes frames apart as bytes come, however they are cut.
func (s *Session) read() error {
	var (
		head [headerSize]byte
		have int
		h    header
		left int    // of h's payload
		part []byte // of a payload that must be whole
	)
	for {
		data, err := s.wire.next()
		if err != nil {
			return err
		}
		for len(data) > 0 {
			if left == 0 {
				n := copy(head[have:], data)
				have += n
				data = data[n:]
				if have < headerSize {
					break
				}
				have = 0
				h = parseHeader(head[:])
				left = h.length
				if left == 0 {
					if err := s.take(h, nil); err != nil {
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
			case h.kind == kindData:
				err = s.deliver(h.stream, chunk, n == h.length)
			case left > 0:
				part = append(part, chunk...)
			case len(part) > 0:
				err = s.take(h, append(part, chunk...))
				part = nil
			default:
				err = s.take(h, chunk)
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

func (s *Session) deliver(id uint32, data []byte, whole bool) error {
	st := s.stream(id)
	if st == nil {
		return nil // it has been reset here, which the other side does not know yet
	}
	if s.late != st {
		s.wakeLate()
	}
	return st.deliver(data, whole)
}

// wakeLate wakes who reads the last stream that something has come for. It is put off until something comes for another one, or the connection has to be read: what of a stream comes together is
// read together.
func (s *Session) wakeLate() {
	if s.late != nil {
		s.late.readable.Signal()
		s.late = nil
	}
}

// take obeys one frame.
func (s *Session) take(h header, payload []byte) error {
	switch h.kind {
	case kindOpen:
		return s.takeOpen(h.stream, payload)
	case kindData: // of no bytes
		return nil
	case kindEnd:
		if st := s.stream(h.stream); st != nil {
			st.end()
		}
		return nil
	case kindSettings:
		if len(payload) != 4 || binary.BigEndian.Uint32(payload) < minWindow || binary.BigEndian.Uint32(payload) > maxWindow || s.told {
			return fmt.Errorf("the other side sent settings that are none: % x", payload)
		}
		s.told = true
		s.takeWindow(int(binary.BigEndian.Uint32(payload)))
		return nil
	case kindTaken:
		if st := s.stream(h.stream); st != nil {
			st.reached()
		}
		return nil
	case kindReset:
		if st := s.stream(h.stream); st != nil {
			st.fail(decodeReset(payload))
			s.forget(st)
		}
		return nil
	case kindWindow:
		if len(payload) != 4 {
			return fmt.Errorf("the other side sent a window of %d bytes instead of 4", len(payload))
		}
		if st := s.stream(h.stream); st != nil {
			st.credit(int(binary.BigEndian.Uint32(payload)))
		}
		return nil
	case kindDrain:
		if !closed(s.drained) { // only who reads closes it
			close(s.drained)
			go s.answerDrain()
		}
		return nil
	case kindDrained:
		s.mu.Lock()
		s.left = closed(s.leaving)
		s.mu.Unlock()
		s.leave()
		return nil
	}
	return fmt.Errorf("the other side sent a frame of kind %d, which this version has not", h.kind)
}

// own says whether it is this side that numbers streams so: who dialled takes the odd numbers.
func (s *Session) own(id uint32) bool { return (id&1 == 1) == s.wire.masks }

func (s *Session) takeOpen(id uint32, head []byte) error {
	if len(head) > maxHead || id == 0 || s.own(id) {
		return fmt.Errorf("the other side opened stream %d with a head of %d bytes", id, len(head))
	}
	s.mu.Lock()
	if s.err != nil { // it has ended while this was on its way
		s.mu.Unlock()
		return s.err
	}
	if s.streams[id] != nil {
		s.mu.Unlock()
		return fmt.Errorf("the other side opened stream %d twice", id)
	}
	if closed(s.leaving) {
		s.mu.Unlock()
		return s.post(header{kind: kindReset, stream: id}, (&ResetError{Reason: Elsewhere, Text: ErrDraining.Error()}).encode())
	}
	if s.taken >= s.cfg.MaxStreams {
		s.mu.Unlock()
		return s.post(header{kind: kindReset, stream: id}, (&ResetError{Reason: Overloaded, Text: "too many streams"}).encode())
	}
	st := newStream(s, id, append([]byte(nil), head...))
	s.streams[id] = st
	s.taken++
	s.mu.Unlock()
	go s.accept(st)
	return nil
}

// forget drops a stream that has ended on both sides.
func (s *Session) forget(st *Stream) {
	s.mu.Lock()
	if s.streams[st.id] != st {
		s.mu.Unlock()
		return
	}
	delete(s.streams, st.id)
	if !s.own(st.id) {
		s.taken--
	}
	over := s.left && len(s.streams) == 0
	s.mu.Unlock()
	if over {
		s.leave()
	}
}
