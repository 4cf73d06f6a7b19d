package tunnel

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Stream is a [net.Conn] over a session that supports half-close. One goroutine may read and one may write at a time.
type Stream struct {
	// Set by newStream, then read only.
	id       uint32
	s        *Session
	metadata []byte

	mu       sync.Mutex // guards what follows
	readable sync.Cond
	writable sync.Cond
	err      error

	// Receiving: in[at:] was received and not read.
	in           []byte
	at           int
	unread       int           // bytes received and not read, or not written to the destination of WriteTo
	uncredited   int           // bytes read that are not in a window frame yet
	ended        bool          // the other side sends no more
	readClosed   bool          // nobody reads any more
	directWriter *directWriter // of a WriteTo that waits for data
	readDeadline deadline

	// The stream's part of the budget, for the Budget.
	counted   int
	uncounted bool
	waiting   *list.Element

	// Sending.
	window        int // bytes that may be sent
	closed        bool
	writeDeadline deadline

	// The target.
	accepted  bool
	forwardTo *Stream // receives frameAccepted, too

	onFailure func()
}

func newStream(s *Session, id uint32, metadata []byte) *Stream {
	st := &Stream{id: id, s: s, metadata: metadata, window: s.peerWindow}
	st.readable.L, st.writable.L = &st.mu, &st.mu
	st.readDeadline.cond, st.writeDeadline.cond = &st.readable, &st.writable
	return st
}

// Metadata that the stream was opened with.
func (st *Stream) Metadata() []byte { return st.metadata }

// deliver stores received data; the session wakes the stream's reader. whole: data is a complete frame.
func (st *Stream) deliver(data []byte, whole bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return nil
	}
	if st.unread+len(data) > st.s.cfg.Window || st.ended {
		return fmt.Errorf("the other side exceeded the window of stream %d, or sent data after its end", st.id)
	}
	if st.readClosed {
		st.setErr(net.ErrClosed)
		st.s.remove(st)
		return st.s.post(frameHeader{kind: frameReset, stream: st.id}, errReadClosed.encode())
	}
	if whole && len(data) <= smallBuffer && st.directWriter != nil && st.at == len(st.in) {
		n := st.directWriter.write(data)
		if update := st.credit(n); update > 0 {
			if err := st.s.post(st.windowFrame(update)); err != nil {
				return err
			}
		}
		if n == len(data) {
			return nil
		}
		data = data[n:]
	}
	st.in, st.at = grow(st.in, st.at, len(data))
	st.in = append(st.in, data...)
	st.unread += len(data)
	st.s.cfg.Budget.count(st, st.unread, false)
	st.s.unsignaled = st
	return nil
}

// credit counts bytes that were read, and returns by how many to enlarge the other side's window now. It is called
// with st.mu held.
func (st *Stream) credit(n int) (update int) {
	st.uncredited += n
	if st.uncredited < st.s.cfg.Window/2 || st.ended || st.err != nil {
		return 0
	}
	update = st.uncredited
	st.uncredited = 0
	return update
}

func (st *Stream) windowFrame(n int) (frameHeader, []byte) {
	return frameHeader{kind: frameWindow, stream: st.id}, binary.BigEndian.AppendUint32(nil, uint32(n))
}

func (st *Stream) handleEnd() {
	st.mu.Lock()
	st.ended = true
	over := st.closed
	st.readable.Signal()
	st.mu.Unlock()
	if over {
		st.s.remove(st)
	}
}

func (st *Stream) addWindow(n int) {
	st.mu.Lock()
	st.window += n
	st.writable.Signal()
	st.mu.Unlock()
}

func (st *Stream) fail(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.setErr(err)
}

// setErr is called with st.mu held.
func (st *Stream) setErr(err error) {
	if st.err == nil {
		st.err = err
		if st.onFailure != nil {
			go st.onFailure() // the session's reader must not wait for it
		}
	}
	st.readable.Broadcast()
	st.writable.Broadcast()
}

// OnFailure calls f in a new goroutine when either side resets the stream or the session ends, or at once if
// that has happened. A second call replaces f; nil removes it.
func (st *Stream) OnFailure(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.onFailure = f
	if f != nil && st.err != nil {
		go f()
	}
}

// Err is why the stream failed; nil if it did not.
func (st *Stream) Err() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}

// Accept sends frameAccepted: the target was reached, or is the Kubernetes API, to which the agent connects later. See
// [Stream.WaitAccepted].
func (st *Stream) Accept() error {
	return st.s.send(frameHeader{kind: frameAccepted, stream: st.id}, nil)
}

// ForwardAccepted accepts the other stream once this stream is accepted.
func (st *Stream) ForwardAccepted(to *Stream) {
	st.mu.Lock()
	st.forwardTo = to
	accepted := st.accepted
	st.mu.Unlock()
	if accepted {
		_ = to.Accept() // the next use of the stream returns the error
	}
}

func (st *Stream) handleAccepted() {
	st.mu.Lock()
	again := st.accepted
	st.accepted = true
	to := st.forwardTo
	st.readable.Broadcast()
	st.mu.Unlock()
	if to == nil || again { // ignore duplicates: they must not fill the shared session's write buffer
		return
	}
	if err := to.s.post(frameHeader{kind: frameAccepted, stream: to.id}, nil); err != nil {
		to.s.fail(err)
	}
}

// WaitAccepted waits until the other side has reached the stream's target, sends data, or ends its direction. It is
// called before Read.
func (st *Stream) WaitAccepted() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for !st.accepted && st.at == len(st.in) && !st.ended {
		if err := st.readError(); err != nil {
			return err
		}
		st.readable.Wait()
	}
	return nil
}

// readError is called with st.mu held.
func (st *Stream) readError() error {
	switch {
	case st.readClosed:
		return net.ErrClosed
	case st.err != nil && !st.ended:
		return st.err
	case st.readDeadline.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// awaitData waits until data was received. It is called with st.mu held.
func (st *Stream) awaitData() error {
	for st.at == len(st.in) {
		if st.ended && !st.readClosed {
			return io.EOF
		}
		if err := st.readError(); err != nil {
			return err
		}
		st.readable.Wait()
	}
	return nil
}

// Read reads received data; [io.EOF] is the end of the other side's direction.
func (st *Stream) Read(p []byte) (int, error) {
	st.mu.Lock()
	if err := st.awaitData(); err != nil {
		st.mu.Unlock()
		return 0, err
	}
	n := copy(p, st.in[st.at:])
	st.at += n
	if st.at == len(st.in) {
		st.in, st.at = shrink(st.in), 0
	}
	update := st.countRead(n)
	st.mu.Unlock()
	st.sendWindowUpdate(update)
	return n, nil
}

// countRead counts bytes that left the stream. It returns the result of credit, and is called with st.mu held.
func (st *Stream) countRead(n int) (update int) {
	st.unread -= n
	update = st.credit(n)
	st.s.cfg.Budget.count(st, st.unread, update > 0)
	return update
}

// sendWindowUpdate allows the other side to send n more bytes.
func (st *Stream) sendWindowUpdate(n int) {
	if n > 0 {
		_ = st.s.send(st.windowFrame(n)) // the next Read returns the error
	}
}

// Idle reports whether the stream is open in both directions and has no unread data.
func (st *Stream) Idle() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err == nil && !st.ended && !st.closed && st.at == len(st.in)
}

// Write sends p. It waits while the window is full.
func (st *Stream) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n, err := st.reserve(min(len(p)-sent, largeCopyBuffer))
		if err != nil {
			return sent, err
		}
		if err := st.s.send(frameHeader{kind: frameData, stream: st.id}, p[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// reserve waits until the window is open, and takes up to n bytes of it.
func (st *Stream) reserve(n int) (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		switch {
		case st.closed:
			return 0, net.ErrClosed
		case st.err != nil:
			return 0, st.err
		case st.writeDeadline.expired:
			return 0, os.ErrDeadlineExceeded
		case st.window > 0:
			n = min(n, st.window)
			st.window -= n
			return n, nil
		}
		st.writable.Wait()
	}
}

// CloseWrite half-closes the stream: this side sends no more.
func (st *Stream) CloseWrite() error {
	st.mu.Lock()
	if st.closed || st.err != nil {
		st.mu.Unlock()
		return nil //nolint:nilerr // Read and Write return it
	}
	st.closed = true
	over := st.ended
	st.writable.Broadcast() // a Write that waits for the window ends
	st.mu.Unlock()
	err := st.s.send(frameHeader{kind: frameEnd, stream: st.id}, nil)
	if over {
		st.s.remove(st)
	}
	return err
}

// Reset ends the stream in both directions.
func (st *Stream) Reset(reason Reason, text string) {
	st.reset(&ResetError{Reason: reason, Text: text})
}

var errReadClosed = &ResetError{Reason: Cancelled, Text: "nobody reads the stream"}

func (st *Stream) reset(reason *ResetError) {
	st.mu.Lock()
	st.s.cfg.Budget.forget(st)
	over := st.err != nil || st.closed && st.ended
	st.mu.Unlock()
	if over {
		return
	}
	st.fail(net.ErrClosed)
	st.s.remove(st)
	_ = st.s.send(frameHeader{kind: frameReset, stream: st.id}, reason.encode()) // an error ends the session
}

// Close stops reading and writing. If the peer sends more data, the stream is reset.
func (st *Stream) Close() error {
	st.mu.Lock()
	st.readClosed = true
	unread := st.at < len(st.in) && !st.ended
	st.in, st.at = nil, 0
	st.s.cfg.Budget.forget(st)
	st.readable.Broadcast()
	st.mu.Unlock()
	if unread {
		st.reset(errReadClosed)
		return nil
	}
	return st.CloseWrite()
}

// LocalAddr of the session's connection.
func (st *Stream) LocalAddr() net.Addr { return st.s.ws.conn.LocalAddr() }

// RemoteAddr of the session's connection.
func (st *Stream) RemoteAddr() net.Addr { return st.s.ws.conn.RemoteAddr() }

// deadline of one direction; guarded by the stream's mutex.
type deadline struct {
	cond    *sync.Cond
	at      time.Time // zero without a deadline
	timer   *time.Timer
	expired bool
}

// setDeadline reuses the timer: HTTP servers set deadlines at every request.
func (st *Stream) setDeadline(d *deadline, t time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	d.at = t
	now := time.Now()
	d.expired = !t.IsZero() && !t.After(now)
	switch {
	case d.expired:
		d.cond.Broadcast()
	case t.IsZero():
		if d.timer != nil {
			d.timer.Stop()
		}
	case d.timer == nil:
		d.timer = time.AfterFunc(t.Sub(now), func() { st.expire(d) })
	default:
		d.timer.Reset(t.Sub(now))
	}
}

func (st *Stream) expire(d *deadline) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch left := time.Until(d.at); {
	case d.at.IsZero(): // it was removed meanwhile
	case left > 0: // it was moved meanwhile
		d.timer.Reset(left)
	default:
		d.expired = true
		d.cond.Broadcast()
	}
}

// SetReadDeadline implements [net.Conn].
func (st *Stream) SetReadDeadline(t time.Time) error {
	st.setDeadline(&st.readDeadline, t)
	return nil
}

// SetWriteDeadline implements [net.Conn].
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.setDeadline(&st.writeDeadline, t)
	return nil
}

// SetDeadline implements [net.Conn].
func (st *Stream) SetDeadline(t time.Time) error {
	st.setDeadline(&st.readDeadline, t)
	st.setDeadline(&st.writeDeadline, t)
	return nil
}
