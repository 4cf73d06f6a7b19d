package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
)

// gathered is how much one read or write below TLS may be, in bytes.
const gathered = 256 << 10

var gatherings = sync.Pool{New: func() any { return new([gathered]byte) }}

// Gather returns a connection for TLS to run on. TLS reads and writes each record of 16 KiB by itself; here what is ready is read at once, and what one [Write] makes of records is
// written at once. While nothing is under way it holds no memory.
func Gather(conn net.Conn) net.Conn { return &gathering{Conn: conn} }

// gathering is used as a connection is: one goroutine reads and one writes at a time. TLS may write from a read, too, such as its answer to a new key of the other side.
type gathering struct {
	net.Conn

	// What was read and not yet given out; nil where there is nothing.
	in         *[gathered]byte
	begin, end int
	// busy is that the last read was as large as it could be.
	busy bool
	// reads is told before the connection is read, unless it is nil.
	reads func()
	// ready is that only what was read already is given out.
	ready bool

	// mu guards what follows, and keeps what is written in order.
	mu   sync.Mutex
	held bool
	out  *[gathered]byte
	n    int
}

// NetConn is what is below.
func (g *gathering) NetConn() net.Conn { return g.Conn }

func (g *gathering) Read(p []byte) (int, error) {
	if g.in == nil {
		if g.ready {
			return 0, errNothingReady
		}
		if g.reads != nil {
			g.reads()
		}
		if !g.busy || len(p) >= gathered {
			n, err := g.Conn.Read(p)
			g.busy = n == len(p)
			return n, err //nolint:wrapcheck // the connection's own
		}
		in := gatherings.Get().(*[gathered]byte) //nolint:errcheck,forcetypeassert // there are no others
		n, err := g.Conn.Read(in[:])
		if g.busy = n > len(p); n == 0 {
			gatherings.Put(in)
			return 0, err //nolint:wrapcheck // the connection's own
		}
		g.in, g.begin, g.end = in, 0, n // an error comes again
	}
	n := copy(p, g.in[g.begin:g.end])
	if g.begin += n; g.begin == g.end {
		gatherings.Put(g.in)
		g.in = nil
	}
	return n, nil
}

func (g *gathering) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.held {
		return g.Conn.Write(p) //nolint:wrapcheck // the connection's own
	}
	written := 0
	for len(p) > 0 {
		if g.out == nil {
			g.out, g.n = gatherings.Get().(*[gathered]byte), 0 //nolint:errcheck,forcetypeassert // there are no others
		}
		n := copy(g.out[g.n:], p)
		g.n += n
		written += n
		p = p[n:]
		if g.n == gathered {
			if err := g.flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// hold what is written from now on.
func (g *gathering) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
}

// release writes what is held, and what comes after it as it comes.
func (g *gathering) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
	return g.flush()
}

// flush is called with g.mu held.
func (g *gathering) flush() error {
	if g.out == nil {
		return nil
	}
	_, err := g.Conn.Write(g.out[:g.n])
	gatherings.Put(g.out)
	g.out = nil
	return err //nolint:wrapcheck // the connection's own
}

// gatheringBelow is what is below TLS, where it gathers; else nil.
func gatheringBelow(conn any) *gathering {
	secure, is := conn.(*tls.Conn)
	if !is {
		return nil
	}
	g, _ := secure.NetConn().(*gathering)
	return g
}

// errNothingReady is temporary, so that TLS goes on another time.
var errNothingReady net.Error = notReadyError{}

type notReadyError struct{}

func (notReadyError) Error() string   { return "nothing is ready" }
func (notReadyError) Timeout() bool   { return true }
func (notReadyError) Temporary() bool { return true }

// readReady reads as TLS does, which gives out one record at a time, and then what else has been read and is ready. It waits for the first only.
func (g *gathering) readReady(secure *tls.Conn, p []byte) (n int, err error) {
	n, err = secure.Read(p)
	g.ready = true
	defer func() { g.ready = false }()
	for err == nil && n < len(p) {
		var more int
		more, err = secure.Read(p[n:])
		n += more
	}
	if errors.Is(err, errNothingReady) && n > 0 {
		err = nil
	}
	return n, err
}

// writer is how to write to w: as it is, or in as few writes as can be where it is TLS on a connection of [Gather].
func writer(w io.Writer) io.Writer {
	if g := gatheringBelow(w); g != nil {
		return &gatheringWriter{w.(*tls.Conn), g} //nolint:errcheck,forcetypeassert // it is TLS
	}
	return w
}

type gatheringWriter struct {
	conn  *tls.Conn
	below *gathering
}

func (w *gatheringWriter) Write(p []byte) (int, error) {
	if err := w.conn.HandshakeContext(context.Background()); err != nil { // while it is under way nothing may be held; it costs nothing once it is over
		return 0, err //nolint:wrapcheck // the connection's own
	}
	w.below.hold()
	n, err := w.conn.Write(p)
	if errFlush := w.below.release(); err == nil && errFlush != nil {
		return 0, errFlush
	}
	return n, err //nolint:wrapcheck // the connection's own
}
