package tunnel

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// Reason why a stream was given up.
type Reason uint8

const (
	// Cancelled is that who used it has no more use for it.
	Cancelled Reason = iota + 1
	// Elsewhere is that it was opened for something that is not here, or not any more: nothing of it was taken, and it can be tried elsewhere.
	Elsewhere
	// Overloaded is that there are as many streams as may be: nothing of it was taken.
	Overloaded
	// Refused is that what it was opened for is not allowed, or does not exist.
	Refused
	// Unreachable is that what it was opened for does not answer.
	Unreachable
	// Broken is that what it was joined to has failed.
	Broken
)

// ResetError is what a stream ends with when the other side gave it up.
type ResetError struct {
	Reason Reason
	Text   string
}

func (e *ResetError) Error() string { return "the other side ended the stream: " + e.Text }

// Untaken says that nothing of the stream reached what it was opened for, so that all of it can be sent again.
func (e *ResetError) Untaken() bool { return e.Reason == Elsewhere || e.Reason == Overloaded }

func (e *ResetError) encode() []byte {
	return append([]byte{byte(e.Reason)}, e.Text[:min(len(e.Text), maxReason)]...)
}

func decodeReset(payload []byte) *ResetError {
	if len(payload) == 0 {
		return &ResetError{Reason: Broken, Text: "for no reason"}
	}
	return &ResetError{Reason: Reason(payload[0]), Text: strings.ToValidUTF8(string(payload[1:min(len(payload), 1+maxReason)]), "?")}
}

// Stream is one conversation over a session: a [net.Conn] whose two directions end separately. One goroutine may read and one may write at a time.
type Stream struct {
	id   uint32
	s    *Session
	head []byte

	mu       sync.Mutex
	readable sync.Cond
	writable sync.Cond
	in       []byte  // what has come and was not read yet
	at       int     // where it begins
	unread   int     // bytes that have come and were not read, or not yet written on
	owed     int     // bytes read that the other side does not know of
	ended    bool    // the other side has ended its direction
	closed   bool    // this side has
	deserted bool    // nobody reads any more
	taken    bool    // the other side has reached what the stream was opened for
	passes   *Stream // is told so, too
	window   int     // bytes that may be sent
	err      error
	failure  func() // see OnFailure
	sink     *sink  // where what comes is to be written; nil unless who writes it waits for it

	readDeadline, writeDeadline deadline
}

func newStream(s *Session, id uint32, head []byte) *Stream {
	st := &Stream{id: id, s: s, head: head, window: s.window}
	st.readable.L, st.writable.L = &st.mu, &st.mu
	return st
}

// Head is what the stream was opened with.
func (st *Stream) Head() []byte { return st.head }

// deliver takes what has come, and leaves it to the session to wake who reads it. whole says that it is all of a frame.
func (st *Stream) deliver(data []byte, whole bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return nil
	}
	if st.unread+len(data) > st.s.cfg.Window || st.ended {
		return fmt.Errorf("the other side sent more on stream %d than it may", st.id)
	}
	if st.deserted {
		st.fails(net.ErrClosed)
		st.s.forget(st)
		return st.s.post(header{kind: kindReset, stream: st.id}, nobodyReads().encode())
	}
	if whole && len(data) <= smallBuffer && st.sink != nil && st.at == len(st.in) {
		n := st.sink.put(data)
		if err := st.passed(n); err != nil || n == len(data) {
			return err
		}
		data = data[n:]
	}
	st.in, st.at = grow(st.in, st.at, len(data))
	st.in = append(st.in, data...)
	st.unread += len(data)
	st.s.late = st
	return nil
}

// passed is read for what was never kept. It is called with st.mu held, by who must not wait.
func (st *Stream) passed(n int) error {
	owed := st.owes(n)
	if owed == 0 {
		return nil
	}
	return st.s.post(header{kind: kindWindow, stream: st.id}, binary.BigEndian.AppendUint32(nil, uint32(owed)))
}

// owes n bytes more to the other side, and returns how many it is to be told of now. It is called with st.mu held.
func (st *Stream) owes(n int) int {
	st.owed += n
	if st.owed < st.s.cfg.Window/2 || st.ended || st.err != nil {
		return 0
	}
	owed := st.owed
	st.owed = 0
	return owed
}

func (st *Stream) end() {
	st.mu.Lock()
	st.ended = true
	over := st.closed
	st.readable.Signal()
	st.mu.Unlock()
	if over {
		st.s.forget(st)
	}
}

func (st *Stream) credit(n int) {
	st.mu.Lock()
	st.window += n
	st.writable.Signal()
	st.mu.Unlock()
}

func (st *Stream) fail(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.fails(err)
}

func (st *Stream) fails(err error) {
	if st.err == nil {
		st.err = err
		if st.failure != nil {
			go st.failure() // who reads the connection must not wait for it
		}
	}
	st.readable.Broadcast()
	st.writable.Broadcast()
}

// OnFailure has f called, in a goroutine of its own, when the stream is given up by either side or its session ends, and at once when that has happened. It is for who waits for
// something else than the stream. Another f takes the place of the one before; nil takes it away.
func (st *Stream) OnFailure(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.failure = f
	if f != nil && st.err != nil {
		go f()
	}
}

// Err is why the stream has failed; nil while it has not.
func (st *Stream) Err() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}

// Take says that what the stream was opened for has been reached; see [Stream.Taken].
func (st *Stream) Take() error {
	return st.s.send(header{kind: kindTaken, stream: st.id}, nil)
}

// PassTaken has another stream, which this one carries on, told the same as this one is.
func (st *Stream) PassTaken(to *Stream) {
	st.mu.Lock()
	st.passes = to
	taken := st.taken
	st.mu.Unlock()
	if taken {
		_ = to.Take() // the stream itself tells what is wrong with it
	}
}

func (st *Stream) reached() {
	st.mu.Lock()
	again := st.taken
	st.taken = true
	to := st.passes
	st.readable.Broadcast()
	st.mu.Unlock()
	if to == nil || again { // however often it is said: what is passed on shares a session with others
		return
	}
	if err := to.s.post(header{kind: kindTaken, stream: to.id}, nil); err != nil {
		to.s.fail(err)
	}
}

// Taken waits until the other side says that it has reached what the stream was opened for, or sends something. It is called before the stream is read.
func (st *Stream) Taken() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for !st.taken && st.at == len(st.in) && !st.ended {
		switch {
		case st.deserted:
			return net.ErrClosed
		case st.err != nil:
			return st.err
		case st.readDeadline.passed:
			return os.ErrDeadlineExceeded
		}
		st.readable.Wait()
	}
	return nil
}

// Read reads what has come; [io.EOF] is the other side's end.
func (st *Stream) Read(p []byte) (int, error) {
	st.mu.Lock()
	if err := st.await(); err != nil {
		st.mu.Unlock()
		return 0, err
	}
	n := copy(p, st.in[st.at:])
	st.at += n
	if st.at == len(st.in) {
		st.in, st.at = shrink(st.in), 0
	}
	st.mu.Unlock()
	st.read(n)
	return n, nil
}

// await waits until something has come. It is called with st.mu held.
func (st *Stream) await() error {
	for st.at == len(st.in) {
		switch {
		case st.deserted:
			return net.ErrClosed
		case st.ended:
			return io.EOF
		case st.err != nil:
			return st.err
		case st.readDeadline.passed:
			return os.ErrDeadlineExceeded
		}
		st.readable.Wait()
	}
	return nil
}

// read lets the other side send as much again, now and then.
func (st *Stream) read(n int) {
	st.mu.Lock()
	st.unread -= n
	owed := st.owes(n)
	st.mu.Unlock()
	if owed > 0 {
		_ = st.s.send(header{kind: kindWindow, stream: st.id}, binary.BigEndian.AppendUint32(nil, uint32(owed))) // what has come counts; the next read tells
	}
}

// Quiet says that the stream is open in both directions, and nothing has come that was not read.
func (st *Stream) Quiet() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err == nil && !st.ended && !st.closed && st.at == len(st.in)
}

// Write sends p; it waits while the other side has not read what was sent before.
func (st *Stream) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n, err := st.reserve(min(len(p)-sent, longCopy))
		if err != nil {
			return sent, err
		}
		if err := st.s.send(header{kind: kindData, stream: st.id}, p[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// reserve waits until something may be sent, and takes up to n bytes of it.
func (st *Stream) reserve(n int) (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		switch {
		case st.closed:
			return 0, net.ErrClosed
		case st.err != nil:
			return 0, st.err
		case st.writeDeadline.passed:
			return 0, os.ErrDeadlineExceeded
		case st.window > 0:
			n = min(n, st.window)
			st.window -= n
			return n, nil
		}
		st.writable.Wait()
	}
}

// CloseWrite ends this side's direction.
func (st *Stream) CloseWrite() error {
	st.mu.Lock()
	if st.closed || st.err != nil {
		st.mu.Unlock()
		return nil //nolint:nilerr // who reads or writes learns it
	}
	st.closed = true
	over := st.ended
	st.mu.Unlock()
	err := st.s.send(header{kind: kindEnd, stream: st.id}, nil)
	if over {
		st.s.forget(st)
	}
	return err
}

// Reset gives the stream up, in both directions.
func (st *Stream) Reset(reason Reason, text string) {
	st.reset(&ResetError{Reason: reason, Text: text})
}

func nobodyReads() *ResetError { return &ResetError{Reason: Cancelled, Text: "nobody reads it"} }

func (st *Stream) reset(why *ResetError) {
	st.mu.Lock()
	over := st.err != nil || st.closed && st.ended
	st.mu.Unlock()
	if over {
		return
	}
	st.fail(net.ErrClosed)
	st.s.forget(st)
	_ = st.s.send(header{kind: kindReset, stream: st.id}, why.encode()) // the session tells its own end
}

// Close ends this side's direction and reads nothing more. What the other side still sends then ends the stream there, too.
func (st *Stream) Close() error {
	st.mu.Lock()
	st.deserted = true
	unread := st.at < len(st.in) && !st.ended
	st.in, st.at = nil, 0
	st.readable.Broadcast()
	st.mu.Unlock()
	if unread {
		st.reset(nobodyReads())
		return nil
	}
	return st.CloseWrite()
}

// LocalAddr is the connection's that the stream goes through.
func (st *Stream) LocalAddr() net.Addr { return st.s.wire.conn.LocalAddr() }

// RemoteAddr is the connection's that the stream goes through.
func (st *Stream) RemoteAddr() net.Addr { return st.s.wire.conn.RemoteAddr() }

// deadline of one direction; its stream's mutex guards it.
type deadline struct {
	timer  *time.Timer
	passed bool
}

func (st *Stream) set(d *deadline, c *sync.Cond, t time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.passed = !t.IsZero() && !t.After(time.Now())
	if d.passed {
		c.Broadcast()
	}
	if t.IsZero() || d.passed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(t), func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		if d.timer == timer {
			d.passed = true
			c.Broadcast()
		}
	})
	d.timer = timer
}

// SetReadDeadline is that of [net.Conn].
func (st *Stream) SetReadDeadline(t time.Time) error {
	st.set(&st.readDeadline, &st.readable, t)
	return nil
}

// SetWriteDeadline is that of [net.Conn].
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.set(&st.writeDeadline, &st.writable, t)
	return nil
}

// SetDeadline is that of [net.Conn].
func (st *Stream) SetDeadline(t time.Time) error {
	st.set(&st.readDeadline, &st.readable, t)
	st.set(&st.writeDeadline, &st.writable, t)
	return nil
}
