package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
)

// coalesceSize is the largest read or write below TLS, in bytes.
const coalesceSize = 256 << 10

var coalesceBuffers = sync.Pool{New: func() any { return new([coalesceSize]byte) }}

// Coalesce wraps the TCP connection below TLS. TLS reads and writes one record, at most 16 KiB, at a time. After a Read
// that filled the caller's buffer, the returned connection reads up to 256 KiB at once. It writes many records at once
// only through [coalescedWriter]. It holds no memory while it is idle.
func Coalesce(conn net.Conn) net.Conn { return &coalescingConn{Conn: conn} }

// coalescingConn is a connection below TLS. One goroutine reads and one writes at a time. TLS may also write from a
// read, such as its response to a key update.
type coalescingConn struct {
	net.Conn

	// Owned by the reader: in[begin:end] was read and not returned; nil if empty.
	in         *[coalesceSize]byte
	begin, end int
	// busy: the last read filled the buffer, so more data is likely
	busy bool
	// beforeRead is called before the connection is read; it may be nil.
	beforeRead func()
	// bufferedOnly: Read returns only data that was read before.
	bufferedOnly bool

	// mu guards what follows, and the order of writes.
	mu   sync.Mutex
	held bool
	out  *[coalesceSize]byte
	n    int
}

// NetConn is the underlying connection.
func (c *coalescingConn) NetConn() net.Conn { return c.Conn }

func (c *coalescingConn) Read(p []byte) (int, error) {
	if c.in == nil {
		if c.bufferedOnly {
			return 0, errNoBufferedData
		}
		if c.beforeRead != nil {
			c.beforeRead()
		}
		if !c.busy || len(p) >= coalesceSize {
			n, err := c.Conn.Read(p)
			c.busy = n == len(p)
			return n, err //nolint:wrapcheck // the connection's own
		}
		in := coalesceBuffers.Get().(*[coalesceSize]byte) //nolint:errcheck,forcetypeassert // the pool has nothing else
		n, err := c.Conn.Read(in[:])
		if c.busy = n > len(p); n == 0 {
			coalesceBuffers.Put(in)
			return 0, err //nolint:wrapcheck // the connection's own
		}
		c.in, c.begin, c.end = in, 0, n // the next Read returns the error again
	}
	n := copy(p, c.in[c.begin:c.end])
	if c.begin += n; c.begin == c.end {
		coalesceBuffers.Put(c.in)
		c.in = nil
	}
	return n, nil
}

func (c *coalescingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		return c.Conn.Write(p) //nolint:wrapcheck // the connection's own
	}
	written := 0
	for len(p) > 0 {
		if c.out == nil {
			c.n = 0
			c.out = coalesceBuffers.Get().(*[coalesceSize]byte) //nolint:errcheck,forcetypeassert // the pool has nothing else
		}
		n := copy(c.out[c.n:], p)
		c.n += n
		written += n
		p = p[n:]
		if c.n == coalesceSize {
			if err := c.flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// hold buffers writes.
func (c *coalescingConn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

// release writes what is buffered, and no longer buffers.
func (c *coalescingConn) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	return c.flush()
}

// flush is called with c.mu held.
func (c *coalescingConn) flush() error {
	if c.out == nil {
		return nil
	}
	_, err := c.Conn.Write(c.out[:c.n])
	coalesceBuffers.Put(c.out)
	c.out = nil
	return err //nolint:wrapcheck // the connection's own
}

// underlyingCoalescing returns the coalescingConn under a TLS connection, or nil.
func underlyingCoalescing(conn any) *coalescingConn {
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	c, _ := secure.NetConn().(*coalescingConn)
	return c
}

// errNoBufferedData is temporary: TLS may be read again after it.
var errNoBufferedData net.Error = notReadyError{}

type notReadyError struct{}

func (notReadyError) Error() string   { return "nothing is ready" }
func (notReadyError) Timeout() bool   { return true }
func (notReadyError) Temporary() bool { return true }

// readReady reads one record of TLS, and then all others that were received. It waits for the first only.
func (c *coalescingConn) readReady(secure *tls.Conn, p []byte) (n int, err error) {
	n, err = secure.Read(p)
	c.bufferedOnly = true
	defer func() { c.bufferedOnly = false }()
	for err == nil && n < len(p) {
		var more int
		more, err = secure.Read(p[n:])
		n += more
	}
	if errors.Is(err, errNoBufferedData) && n > 0 {
		err = nil
	}
	return n, err
}

// coalescedWriter coalesces writes to w, if w is TLS on a connection of [Coalesce].
func coalescedWriter(w io.Writer) io.Writer {
	if c := underlyingCoalescing(w); c != nil {
		return &coalescingWriter{w.(*tls.Conn), c} //nolint:errcheck,forcetypeassert // underlyingCoalescing has checked it
	}
	return w
}

type coalescingWriter struct {
	conn  *tls.Conn
	below *coalescingConn
}

func (w *coalescingWriter) Write(p []byte) (int, error) {
	if err := w.conn.HandshakeContext(context.Background()); err != nil { // nothing may be buffered during the handshake
		return 0, err //nolint:wrapcheck // the connection's own
	}
	w.below.hold()
	n, err := w.conn.Write(p)
	if errFlush := w.below.release(); err == nil && errFlush != nil {
		return 0, errFlush
	}
	return n, err //nolint:wrapcheck // the connection's own
}
