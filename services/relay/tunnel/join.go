package tunnel

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// A copy starts with smallCopyBuffer bytes and uses largeCopyBuffer after a read filled the buffer.
const (
	smallCopyBuffer = 16 << 10
	largeCopyBuffer = 4 * fullPayload
)

var (
	smallCopyBuffers = sync.Pool{New: func() any { return &copyBuffer{make([]byte, smallCopyBuffer)} }}
	largeCopyBuffers = sync.Pool{New: func() any { return &copyBuffer{make([]byte, largeCopyBuffer)} }}
)

type copyBuffer struct{ bytes []byte }

func getCopyBuffer(large bool) *copyBuffer {
	if large {
		return largeCopyBuffers.Get().(*copyBuffer) //nolint:errcheck,forcetypeassert // the pool has nothing else
	}
	return smallCopyBuffers.Get().(*copyBuffer) //nolint:errcheck,forcetypeassert // the pool has nothing else
}

func (b *copyBuffer) put() {
	if len(b.bytes) == largeCopyBuffer {
		largeCopyBuffers.Put(b)
	} else {
		smallCopyBuffers.Put(b)
	}
}

// WriteTo writes received data to w until the other side ends. While no data arrives it holds no large buffer.
func (st *Stream) WriteTo(w io.Writer) (int64, error) {
	direct := newDirectWriter(w)
	w = coalescedWriter(w)
	var written int64
	var data, spare []byte
	defer func() { shrink(spare) }()
	for {
		var at int
		var err error
		data, at, err = st.takeReceived(spare, direct)
		if direct != nil {
			written, direct.written = written+direct.written, 0
		}
		if err != nil {
			spare = nil
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return written, err
		}
		spare = data
		if direct != nil && direct.err != nil {
			return written, direct.err
		}
		n, err := w.Write(data[at:])
		written += int64(n)
		if err != nil {
			return written, err //nolint:wrapcheck // the writer's own
		}
		st.mu.Lock()
		update := st.countRead(n)
		st.mu.Unlock()
		st.sendWindowUpdate(update)
	}
}

// takeReceived waits for data that the direct writer did not write, takes all of it, and leaves spare in its place.
func (st *Stream) takeReceived(spare []byte, direct *directWriter) (data []byte, at int, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.at == len(st.in) {
		spare = shrink(spare)
		st.in, st.at = shrink(st.in), 0
	}
	st.directWriter = direct
	err = st.awaitData()
	st.directWriter = nil
	if err != nil {
		shrink(spare)
		return nil, 0, err
	}
	data, at = st.in, st.at
	st.in, st.at = spare[:0], 0
	return data, at, nil
}

// ReadFrom sends what it reads from r until r ends. While a connection has no data it holds no buffer.
func (st *Stream) ReadFrom(r io.Reader) (int64, error) {
	read := readBlocking(r)
	if c, ok := r.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			read = readWhenReady(raw)
		}
	} else if c := underlyingCoalescing(r); c != nil {
		read = readRecords(r.(*tls.Conn), c) //nolint:errcheck,forcetypeassert // underlyingCoalescing has checked it
	}
	var sent int64
	large := false
	for {
		buffer, n, err := read(large)
		if n > 0 {
			written, errWrite := st.Write(buffer.bytes[:n])
			sent += int64(written)
			err = errors.Join(errWrite, err)
		}
		if buffer != nil {
			large = n == len(buffer.bytes) || large && n > smallCopyBuffer
			buffer.put()
		}
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

func readBlocking(r io.Reader) func(large bool) (*copyBuffer, int, error) {
	return func(large bool) (*copyBuffer, int, error) {
		buffer := getCopyBuffer(large)
		n, err := r.Read(buffer.bytes)
		return buffer, n, err //nolint:wrapcheck // the reader's own
	}
}

// readRecords reads several records of TLS at once.
func readRecords(secure *tls.Conn, below *coalescingConn) func(large bool) (*copyBuffer, int, error) {
	return func(large bool) (*copyBuffer, int, error) {
		buffer := getCopyBuffer(large)
		n, err := below.readReady(secure, buffer.bytes)
		return buffer, n, err
	}
}

// readWhenReady takes a buffer only after data has arrived.
func readWhenReady(raw syscall.RawConn) func(large bool) (*copyBuffer, int, error) {
	return func(large bool) (buffer *copyBuffer, n int, err error) {
		errWait := raw.Read(func(fd uintptr) bool {
			buffer = getCopyBuffer(large)
			for {
				n, err = syscall.Read(int(fd), buffer.bytes)
				if !errors.Is(err, syscall.EINTR) {
					break
				}
			}
			if errors.Is(err, syscall.EAGAIN) {
				buffer.put()
				buffer, n, err = nil, 0, nil
				return false
			}
			return true
		})
		switch {
		case errWait != nil:
			return buffer, 0, errWait //nolint:wrapcheck // the reader's own
		case err != nil:
			return buffer, 0, os.NewSyscallError("read", err)
		case n == 0:
			return buffer, 0, io.EOF
		}
		return buffer, n, nil
	}
}

// Conn is a connection that supports half-close: a [Stream], a [net.TCPConn], a [tls.Conn].
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Join copies both directions between a and b, and closes both. An error or a stream reset aborts both sides at
// once, even while one is blocked; Join returns it. Join owns both connections.
func Join(a, b Conn) (aToB, bToA int64, err error) {
	j := &joinedPair{a: a, b: b}
	j.watch(a)
	j.watch(b)
	var other sync.WaitGroup
	other.Go(func() { bToA = j.copy(a, b) })
	aToB = j.copy(b, a)
	other.Wait()
	return aToB, bToA, j.close()
}

// joinedPair is two connections that are copied to each other.
type joinedPair struct {
	a, b Conn

	mu   sync.Mutex
	over bool
	err  error
}

func (j *joinedPair) watch(c Conn) {
	if st, ok := c.(*Stream); ok {
		st.OnFailure(func() { j.fail(st.Err()) })
	}
}

func (j *joinedPair) copy(to, from Conn) int64 {
	n, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		j.fail(err)
	}
	return n
}

func (j *joinedPair) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return
	}
	j.over, j.err = true, err
	abort(j.a, err)
	abort(j.b, err)
}

func (j *joinedPair) close() error {
	j.mu.Lock()
	j.over = true
	j.mu.Unlock()
	for _, c := range []Conn{j.a, j.b} {
		if st, ok := c.(*Stream); ok {
			st.OnFailure(nil)
		}
		_ = c.Close() // it is over
	}
	return j.err
}

// abort resets a connection, so that the peer sees an error and not EOF.
func abort(c Conn, err error) {
	if st, ok := c.(*Stream); ok {
		reason := &ResetError{Reason: TargetConnectionLost, Text: "the connection it was joined with failed"}
		errors.As(err, &reason)
		st.reset(reason)
		return
	}
	resetTCP(c)
	_ = c.Close()
}

// resetTCP resets the TCP connection below conn: closing TLS would send close_notify.
func resetTCP(conn net.Conn) {
	for {
		switch c := conn.(type) {
		case *net.TCPConn:
			_ = c.SetLinger(0) // close sends a reset
			_ = c.Close()
			return
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return
		}
	}
}
