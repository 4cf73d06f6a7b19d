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

// shortCopy is how much is read at once of what becomes a stream, and longCopy while there is so much that each read is full.
const (
	shortCopy = 16 << 10
	longCopy  = 4 * fullPayload
)

var (
	shortCopies = sync.Pool{New: func() any { return &copyBuffer{make([]byte, shortCopy)} }}
	longCopies  = sync.Pool{New: func() any { return &copyBuffer{make([]byte, longCopy)} }}
)

type copyBuffer struct{ bytes []byte }

func takeCopy(long bool) *copyBuffer {
	if long {
		return longCopies.Get().(*copyBuffer) //nolint:errcheck,forcetypeassert // there are no others
	}
	return shortCopies.Get().(*copyBuffer) //nolint:errcheck,forcetypeassert // there are no others
}

func (b *copyBuffer) put() {
	if len(b.bytes) == longCopy {
		longCopies.Put(b)
	} else {
		shortCopies.Put(b)
	}
}

// WriteTo writes what comes to w until the other side ends. While nothing comes it holds no memory.
func (st *Stream) WriteTo(w io.Writer) (int64, error) {
	straight := newSink(w)
	w = writer(w)
	var written int64
	var data, spare []byte
	defer func() { shrink(spare) }()
	for {
		var at int
		var err error
		data, at, err = st.takeAll(spare, straight)
		if straight != nil {
			written, straight.written = written+straight.written, 0
		}
		if err != nil {
			spare = nil
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return written, err
		}
		if straight != nil && straight.failed != nil {
			spare = data
			return written, straight.failed
		}
		n, err := w.Write(data[at:])
		written += int64(n)
		spare = data
		if err != nil {
			return written, err //nolint:wrapcheck // the writer's own
		}
		st.read(n)
	}
}

// takeAll waits until something has come that could not be written to a sink at once, if there is one, and takes all of it, leaving spare in its place. While it waits it keeps nothing
// large.
func (st *Stream) takeAll(spare []byte, to *sink) (data []byte, at int, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.at == len(st.in) {
		spare = shrink(spare)
		st.in, st.at = shrink(st.in), 0
	}
	st.sink = to
	err = st.await()
	st.sink = nil
	if err != nil {
		shrink(spare)
		return nil, 0, err
	}
	data, at = st.in, st.at
	st.in, st.at = spare[:0], 0
	return data, at, nil
}

// ReadFrom sends what r has until it ends. While a connection has nothing, no memory is held.
func (st *Stream) ReadFrom(r io.Reader) (int64, error) {
	read := readBlocking(r)
	if c, is := r.(syscall.Conn); is {
		if raw, err := c.SyscallConn(); err == nil {
			read = readWhenReady(raw)
		}
	} else if g := gatheringBelow(r); g != nil {
		read = readGathered(r.(*tls.Conn), g) //nolint:errcheck,forcetypeassert // it is TLS
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
		buffer := takeCopy(long)
		n, err := r.Read(buffer.bytes)
		return buffer, n, err //nolint:wrapcheck // the reader's own
	}
}

// readGathered reads more than one record at once.
func readGathered(secure *tls.Conn, g *gathering) func(long bool) (*copyBuffer, int, error) {
	return func(long bool) (*copyBuffer, int, error) {
		buffer := takeCopy(long)
		n, err := g.readReady(secure, buffer.bytes)
		return buffer, n, err
	}
}

// readWhenReady takes a buffer only when there is something to read.
func readWhenReady(raw syscall.RawConn) func(long bool) (*copyBuffer, int, error) {
	return func(long bool) (buffer *copyBuffer, n int, err error) {
		errWait := raw.Read(func(fd uintptr) bool {
			buffer = takeCopy(long)
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

// Conn is a connection whose directions end separately: a [Stream], a [net.TCPConn], a [tls.Conn].
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Join carries bytes between two connections until both directions have ended, and closes both. An error of either ends both at once; it is the first that there was. So does a stream
// that is given up, even while the other connection neither takes nor sends anything. Nobody else may use them meanwhile.
func Join(a, b Conn) (aToB, bToA int64, err error) {
	j := &joint{a: a, b: b}
	j.watch(a)
	j.watch(b)
	var other sync.WaitGroup
	other.Go(func() { bToA = j.carry(a, b) })
	aToB = j.carry(b, a)
	other.Wait()
	return aToB, bToA, j.end()
}

// joint is two connections that are one.
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

func (j *joint) carry(to, from Conn) int64 {
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
	give(j.a, err)
	give(j.b, err)
}

func (j *joint) end() error {
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

// give a connection up, so that the other side of it does not take it for complete, and knows why as far as can be told.
func give(c Conn, err error) {
	switch c := c.(type) {
	case *Stream:
		why := &ResetError{Reason: Broken, Text: "what it was joined to has failed"}
		errors.As(err, &why)
		c.reset(why)
	default:
		abort(c)
		_ = c.Close()
	}
}

// abort resets the connection below all that is around it: TLS would say good-bye, as one does at the end of what is whole.
func abort(conn net.Conn) {
	for {
		switch c := conn.(type) {
		case *net.TCPConn:
			_ = c.SetLinger(0) // ends with a reset
			_ = c.Close()
			return
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return
		}
	}
}
