package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Config of a session. The zero value has all defaults.
type Config struct {
	// Window is how many bytes of a stream the other side may send before they are read, from 64 KiB to 64 MiB.
	// Defaults to 512 KiB.
	Window int
	// MaxStreams that the other side may have open. Defaults to 1,000.
	MaxStreams int
	// WriteTimeout of a write without progress. Defaults to 30 s.
	WriteTimeout time.Duration
	// PingInterval of pings. The connection is closed after two intervals without data. Defaults to 20 s.
	PingInterval time.Duration
	// Budget bounds the unread data of all streams of the sessions that share it. Defaults to no bound.
	Budget *Budget
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

// ErrClosed ends streams when their connection ends.
var ErrClosed = errors.New("the tunnel is closed")

// ErrDraining is returned by Open while either side drains.
var ErrDraining = errors.New("the tunnel is being drained")

// errDrained ends a session that this side has drained.
var errDrained = errors.New("the session was drained")

// Session is one end of a tunnel: it multiplexes streams over one connection. It may be used by many goroutines.
type Session struct {
	// Set by NewSession, then read only.
	cfg    Config
	ws     *webSocket
	accept func(*Stream)
	// done is closed when the session has ended.
	done chan struct{}
	// draining: this side drains. peerDraining: the other side drains.
	draining, peerDraining chan struct{}

	// Owned by the reader, the goroutine of Serve.
	hasSettings bool // of the other side
	// unsignaled is the stream whose reader must still be woken.
	unsignaled *Stream

	// Owned by the timer.
	silentIntervals int    // intervals without data
	readsAtPing     uint64 // before the last ping

	// opening is read-locked while a stream is opened: frameDrained comes after the last frameOpen.
	opening sync.RWMutex

	mu      sync.Mutex // guards what follows
	streams map[uint32]*Stream
	// accepted streams: those that the other side has opened.
	accepted   int
	nextID     uint32
	peerWindow int
	// peerDrained reports whether the other side opens no more streams.
	peerDrained bool
	err         error
	timer       *time.Timer

	writeMu sync.Mutex // guards what follows, for the writers
	// pending holds encoded frames; spare is the buffer to reuse.
	pending, spare []byte
	frames         int    // in pending
	pong           []byte // payload to send
	ping           bool   // send one
	closing        bool   // send a close message after pending
	// flushing reports whether a goroutine is writing.
	flushing bool
	// concurrent: the last batch had several frames, so several goroutines may be sending.
	concurrent bool
	capacity   sync.Cond // in pending
	writeErr   error
}

// NewSession makes a session of a connection that was upgraded to WebSocket. dialled reports whether this side
// dialled; encrypted reports whether the connection uses TLS. accept is called with each stream that the other side
// opens, in a goroutine of its own. The caller runs [Session.Serve].
func NewSession(conn net.Conn, dialled, encrypted bool, cfg Config, accept func(*Stream)) *Session {
	cfg = cfg.withDefaults()
	s := &Session{
		cfg: cfg, accept: accept, streams: map[uint32]*Stream{}, peerWindow: minWindow, nextID: 2,
		done: make(chan struct{}), draining: make(chan struct{}), peerDraining: make(chan struct{}),
		ws: &webSocket{
			conn: conn, out: coalescedWriter(conn), dialled: dialled, encrypted: encrypted, buffer: make([]byte, readBuffer),
			timeout: cfg.WriteTimeout,
		},
	}
	if dialled {
		s.nextID = 1
	}
	s.capacity.L = &s.writeMu
	s.ws.pinged = s.sendPong
	if c := underlyingCoalescing(conn); c != nil {
		c.beforeRead = s.wakeStreamReader
	} else {
		s.ws.beforeRead = s.wakeStreamReader
	}
	return s
}

// Open opens a stream without a round trip: data may follow at once.
func (s *Session) Open(metadata []byte) (*Stream, error) {
	if len(metadata) > maxMetadata {
		return nil, fmt.Errorf("the metadata of a stream has %d bytes, more than %d", len(metadata), maxMetadata)
	}
	s.opening.RLock()
	defer s.opening.RUnlock()
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	if isClosed(s.draining) || isClosed(s.peerDraining) {
		s.mu.Unlock()
		return nil, ErrDraining
	}
	for s.nextID == 0 || s.streams[s.nextID] != nil { // ids wrap around after 2^31 streams
		s.nextID += 2
	}
	st := newStream(s, s.nextID, metadata)
	s.streams[s.nextID] = st
	s.nextID += 2
	s.mu.Unlock()
	return st, s.send(frameHeader{kind: frameOpen, length: len(metadata), stream: st.id}, metadata)
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// LocalDraining is closed when this side accepts no more streams.
func (s *Session) LocalDraining() <-chan struct{} { return s.draining }

// PeerDraining is closed when the other side accepts no more streams.
func (s *Session) PeerDraining() <-chan struct{} { return s.peerDraining }

// Drain stops opening and accepting streams. The session ends with its last stream.
func (s *Session) Drain() {
	s.mu.Lock()
	if isClosed(s.draining) || s.err != nil {
		s.mu.Unlock()
		return
	}
	close(s.draining)
	s.mu.Unlock()
	_ = s.send(frameHeader{kind: frameDrain}, nil) // an error ends the session
}

// Close ends the session and its streams. It returns nil.
func (s *Session) Close() error {
	s.fail(ErrClosed)
	return nil
}

// Serve reads frames until the session ends. It returns the reason; never nil.
func (s *Session) Serve() error {
	s.mu.Lock()
	if s.err == nil {
		s.timer = time.AfterFunc(s.cfg.PingInterval, s.checkAlive)
	}
	s.mu.Unlock()
	if s.ws.dialled { // the other side waits for the settings
		s.sendSettings()
	}
	s.fail(s.read())
	return s.err
}

// checkAlive sends a ping, or ends the session after two intervals without data.
func (s *Session) checkAlive() {
	if reads := s.ws.reads.Load(); reads != s.readsAtPing {
		s.readsAtPing, s.silentIntervals = reads, 0
	} else if s.silentIntervals++; s.silentIntervals >= 2 {
		s.fail(fmt.Errorf("nothing was received for %s", 2*s.cfg.PingInterval))
		return
	}
	s.sendPing()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.timer.Reset(s.cfg.PingInterval)
	}
}

func (s *Session) sendPing() {
	s.writeMu.Lock()
	s.ping = true
	s.flushAndUnlock()
}

// Responds sends a ping, waits until ctx is done, and reports whether anything was received meanwhile.
func (s *Session) Responds(ctx context.Context) bool {
	before := s.ws.reads.Load()
	s.sendPing()
	select {
	case <-ctx.Done():
	case <-s.done:
	}
	return s.ws.reads.Load() != before
}

func (s *Session) fail(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if errors.Is(err, io.EOF) { // EOF would look like the regular end of a stream
		err = io.ErrUnexpectedEOF
	}
	s.err = errors.Join(ErrClosed, err)
	streams := s.streams
	s.streams = nil
	close(s.done)
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.writeMu.Lock()
	s.writeErr = s.err
	s.capacity.Broadcast()
	s.writeMu.Unlock()
	_ = s.ws.conn.Close() // it is over
	for _, st := range streams {
		st.fail(s.err)
	}
}

// remove removes a stream that has ended in both directions.
func (s *Session) remove(st *Stream) {
	s.mu.Lock()
	if s.streams[st.id] != st {
		s.mu.Unlock()
		return
	}
	delete(s.streams, st.id)
	if !s.isOwn(st.id) {
		s.accepted--
	}
	s.mu.Unlock()
	s.closeIfDrained()
}

// closeIfDrained ends a drained session without streams, after pending frames are written.
func (s *Session) closeIfDrained() {
	s.mu.Lock()
	over := s.peerDrained && len(s.streams) == 0 && s.err == nil
	s.mu.Unlock()
	if !over {
		return
	}
	s.writeMu.Lock()
	s.closing = true
	s.flushAndUnlock()
}

// isOwn reports whether this side uses such stream ids.
func (s *Session) isOwn(id uint32) bool { return (id&1 == 1) == s.ws.dialled }

func (s *Session) count() (opened, accepted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, 0
	}
	return len(s.streams) - s.accepted, s.accepted
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
