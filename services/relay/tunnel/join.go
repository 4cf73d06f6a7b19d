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

// shortCopy is the size of a first read, and longCopy while every read is full.
const (
	shortCopy = 16 << 10
	longCopy  = 4 * fullPayload
)

var (
	shortCopies = sync.Pool{New: func() any { return &copyBuffer{make([]byte, shortCopy)} }}
	longCopies  = sync.Pool{New: func() any { return &copyBuffer{make([]byte, longCopy)} }}
)

type copyBuffer struct{ bytes []byte }

func getCopyBuffer(long bool) *copyBuffer {
	if long {
		return longCopies.Get().(*copyBuffer) //nolint:errcheck,forcetypeassert // the pool has nothing else
	}
	return shortCopies.Get().(*copyBuffer) //nolint:errcheck,forcetypeassert // the pool has nothing else
}

func (b *copyBuffer) put() {
	if len(b.bytes) == longCopy {
		longCopies.Put(b)
	} else {
		shortCopies.Put(b)
	}
}

// WriteTo writes received data to w until the other side ends. While no data arrives it holds no large buffer.
func (st *Stream) WriteTo(w io.Writer) (int64, error) {
	direct := newDirectWriter(w)
	w = writer(w)
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
		report := st.read(n)
		st.mu.Unlock()
		st.report(report)
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
	if c, is := r.(syscall.Conn); is {
		if raw, err := c.SyscallConn(); err == nil {
			read = readWhenReady(raw)
		}
	} else if c := coalescingBelow(r); c != nil {
		read = readRecords(r.(*tls.Conn), c) //nolint:errcheck,forcetypeassert // coalescingBelow has checked it
	}
	var sent int64
	long := false
	for {
		buffer, n, err := read(long)
		if n > 0 {
			written, errWrite := st.Write(buffer.bytes[:n])
			sent += int64(written)
			err = errors.Join(errWrite, err)
		}
		if buffer != nil {
			long = n == len(buffer.bytes) || long && n > shortCopy
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

func readBlocking(r io.Reader) func(long bool) (*copyBuffer, int, error) {
	return func(long bool) (*copyBuffer, int, error) {
		buffer := getCopyBuffer(long)
		n, err := r.Read(buffer.bytes)
		return buffer, n, err //nolint:wrapcheck // the reader's own
	}
}

// readRecords reads several records of TLS at once.
func readRecords(secure *tls.Conn, below *coalescingConn) func(long bool) (*copyBuffer, int, error) {
	return func(long bool) (*copyBuffer, int, error) {
		buffer := getCopyBuffer(long)
		n, err := below.readReady(secure, buffer.bytes)
		return buffer, n, err
	}
}

// readWhenReady takes a buffer only after data has arrived.
func readWhenReady(raw syscall.RawConn) func(long bool) (*copyBuffer, int, error) {
	return func(long bool) (buffer *copyBuffer, n int, err error) {
		errWait := raw.Read(func(fd uintptr) bool {
			buffer = getCopyBuffer(long)
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

// Conn is a connection with separate ends of its directions: a [Stream], a [net.TCPConn], a [tls.Conn].
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Join copies between two connections until both directions have ended, and closes both. The first error of either
// ends both at once, and is returned. So does the reset of a stream, even while the other connection is blocked.
// Nobody else may use the connections.
func Join(a, b Conn) (aToB, bToA int64, err error) {
	j := &joint{a: a, b: b}
	j.watch(a)
	j.watch(b)
	var other sync.WaitGroup
	other.Go(func() { bToA = j.copy(a, b) })
	aToB = j.copy(b, a)
	other.Wait()
	return aToB, bToA, j.close()
}

// joint is two joined connections.
type joint struct {
	a, b Conn

	mu   sync.Mutex
	over bool
	err  error
}

func (j *joint) watch(c Conn) {
	if st, is := c.(*Stream); is {
		st.OnFailure(func() { j.fail(st.Err()) })
	}
}

func (j *joint) copy(to, from Conn) int64 {
	n, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		j.fail(err)
	}
	return n
}

func (j *joint) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return
	}
	j.over, j.err = true, err
	abort(j.a, err)
	abort(j.b, err)
}

func (j *joint) close() error {
	j.mu.Lock()
	j.over = true
	j.mu.Unlock()
	for _, c := range []Conn{j.a, j.b} {
		if st, is := c.(*Stream); is {
			st.OnFailure(nil)
		}
		_ = c.Close() // it is over
	}
	return j.err
}

// abort ends a connection so that the other side does not take it for complete.
func abort(c Conn, err error) {
	if st, is := c.(*Stream); is {
		why := &ResetError{Reason: Broken, Text: "the connection it was joined with failed"}
		errors.As(err, &why)
		st.reset(why)
		return
	}
	resetTCP(c)
	_ = c.Close()
}

// resetTCP resets the TCP connection below conn: TLS would send the regular end of a connection.
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
