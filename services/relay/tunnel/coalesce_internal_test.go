package tunnel

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counted is a connection whose writes are counted.
type counted struct {
	net.Conn

	mu      sync.Mutex
	written bytes.Buffer
	writes  int
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	return c.written.Write(p)
}

// TLS answers a new key of the other side from a read, while something is being written.
func TestWhatAReadWritesDoesNotMeetWhatIsBeingWritten(t *testing.T) {
	t.Parallel()
	below := &counted{}
	g := &coalescingConn{Conn: below}
	var writing sync.WaitGroup
	writing.Go(func() {
		for range 2000 {
			g.hold()
			for range 3 {
				_, _ = g.Write([]byte("aaaa"))
			}
			_ = g.release()
		}
	})
	writing.Go(func() {
		for range 2000 {
			_, _ = g.Write([]byte("b"))
		}
	})
	writing.Wait()
	require.Equal(t, 24_000, bytes.Count(below.written.Bytes(), []byte("a")))
	require.Equal(t, 2000, bytes.Count(below.written.Bytes(), []byte("b")))
	require.Nil(t, g.out, "nothing is kept")
}

func TestWhatIsHeldGoesInAsFewWritesAsCanBe(t *testing.T) {
	t.Parallel()
	below := &counted{}
	g := &coalescingConn{Conn: below}
	sent := make([]byte, 2*coalesceSize+5)
	_, err := rand.Read(sent)
	require.NoError(t, err)
	g.hold()
	for rest := sent; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		written, err := g.Write(rest[:n])
		require.NoError(t, err)
		require.Equal(t, n, written)
		rest = rest[n:]
	}
	require.Equal(t, 2, below.writes)
	require.NoError(t, g.release())
	require.Equal(t, 3, below.writes)
	require.Equal(t, sent, below.written.Bytes())
	require.NoError(t, g.release(), "there is nothing")
	require.Equal(t, 3, below.writes)
}

// chunks gives what there is in pieces of these sizes, over and over.
type chunks struct {
	net.Conn

	rest  []byte
	sizes []byte
	next  int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	size := 1
	if len(c.sizes) > 0 {
		size += int(c.sizes[c.next%len(c.sizes)]) << 8
		c.next++
	}
	n := copy(p[:min(size, len(p))], c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func FuzzGather(f *testing.F) {
	f.Add([]byte{0}, []byte{5, 255}, uint16(1000))
	f.Add([]byte{255, 0, 255}, []byte{1}, uint16(65535))
	f.Fuzz(func(t *testing.T, come, asked []byte, times uint16) {
		sent := bytes.Repeat([]byte("0123456789abcdef~"), int(times)) // a prime, so that no piece looks like another
		g := &coalescingConn{Conn: &chunks{rest: sent, sizes: come}}
		var got []byte
		for i := 0; ; i++ {
			size := 1
			if len(asked) > 0 {
				size += int(asked[i%len(asked)]) << 4
			}
			p := make([]byte, size)
			n, err := g.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			require.Positive(t, n)
		}
		require.True(t, bytes.Equal(sent, got))
		require.Nil(t, g.in, "nothing is kept")
	})
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"relay"}}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

func TestTLSGoesThroughBothWays(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	one := tls.Client(Coalesce(dialled), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	other := tls.Server(Coalesce(accepted), &tls.Config{Certificates: []tls.Certificate{certificate(t)}, MinVersion: tls.VersionTLS13})
	var shaking sync.WaitGroup
	shaking.Go(func() { _ = one.Handshake() }) // as it is when a tunnel begins; what follows tells
	require.NoError(t, other.Handshake())
	shaking.Wait()
	sent := make([]byte, 3<<20)
	_, err = rand.Read(sent)
	require.NoError(t, err)
	var both sync.WaitGroup
	for _, c := range []*tls.Conn{one, other} {
		both.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 300_001)
				if _, err := writer(c).Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		})
		both.Go(func() {
			got := make([]byte, len(sent))
			_, err := io.ReadFull(c, got)
			if err != nil || !bytes.Equal(sent, got) {
				t.Errorf("what came is not what was sent: %v", err)
				_ = c.Close()
			}
		})
	}
	both.Wait()
	for _, c := range []*tls.Conn{one, other} {
		g, is := c.NetConn().(*coalescingConn)
		require.True(t, is)
		require.Nil(t, g.out)
		_ = c.NetConn().Close()
	}
}

// secured are both ends of TLS over connections that gather, after the handshake.
func secured(t *testing.T, dialled, accepted net.Conn) (one, other *tls.Conn) {
	t.Helper()
	one = tls.Client(Coalesce(dialled), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true})
	other = tls.Server(Coalesce(accepted), &tls.Config{Certificates: []tls.Certificate{certificate(t)}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true})
	var shaking sync.WaitGroup
	shaking.Go(func() { _ = one.Handshake() }) // what follows tells
	require.NoError(t, other.Handshake())
	shaking.Wait()
	return one, other
}

// scripted gives out what the test has it give out, each piece by one read.
type scripted struct {
	net.Conn

	pieces [][]byte
}

func (c *scripted) Read(p []byte) (int, error) {
	if len(c.pieces) == 0 {
		return 0, errScriptEnded
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

var errScriptEnded = errors.New("it would have waited")

// What has come is given out together, and does not wait for what has come in part.
func TestRecordsThatAreReadyAreReadTogether(t *testing.T) {
	t.Parallel()
	const size = 10_000
	near, far := net.Pipe()
	one, other := secured(t, near, far)
	captured := &counted{}
	from, is := one.NetConn().(*coalescingConn)
	require.True(t, is)
	from.Conn = captured
	sent := make([]byte, 10*size)
	_, err := rand.Read(sent)
	require.NoError(t, err)
	var ends []int // of records, in what is captured
	for i := range 10 {
		_, err := one.Write(sent[i*size : (i+1)*size])
		require.NoError(t, err)
		ends = append(ends, captured.written.Len())
	}
	raw := captured.written.Bytes()
	g, is := other.NetConn().(*coalescingConn)
	require.True(t, is)
	script := &scripted{Conn: far, pieces: [][]byte{raw[:ends[0]-7], raw[ends[0]-7 : ends[1]+3], raw[ends[1]+3 : ends[3]+5000], raw[ends[3]+5000 : ends[8]+1], raw[ends[8]+1:]}}
	g.Conn = script
	g.busy = true // as it is while there is much to read
	var got []byte
	for _, want := range []int{2, 2, 5, 1} {
		p := make([]byte, len(sent))
		n, err := g.readReady(other, p)
		require.NoError(t, err)
		require.Equal(t, want*size, n)
		got = append(got, p[:n]...)
	}
	require.True(t, bytes.Equal(sent, got))
	_, err = g.readReady(other, make([]byte, 1))
	require.ErrorIs(t, err, errScriptEnded)
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}

// Who reads a stream is woken later than something comes, and yet always before the session waits for more: over TLS as well, which may have more at hand that is none of the connection.
func TestWhoReadsIsWokenBeforeTheSessionWaits(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	one, other := secured(t, dialled, accepted)
	echo := func(st *Stream) {
		_, _ = io.Copy(st, st)
		_ = st.CloseWrite()
	}
	near, far := NewSession(one, true, true, Config{}, nil), NewSession(other, false, true, Config{}, echo)
	var serving, talking sync.WaitGroup
	for _, s := range []*Session{near, far} {
		serving.Go(func() { _ = s.Serve() })
	}
	for i := range 4 {
		talking.Go(func() {
			st, err := near.Open(nil)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range 100 {
				sent := bytes.Repeat([]byte{byte(i), byte(j), 7}, 1+j*j*(1+i*10))
				got := make([]byte, len(sent))
				var writing sync.WaitGroup
				writing.Go(func() { _, _ = st.Write(sent) })
				_, err := io.ReadFull(st, got)
				writing.Wait()
				if err != nil || !bytes.Equal(sent, got) {
					t.Errorf("what came back is not what was sent: %v", err)
					_ = near.Close()
					return
				}
			}
			_ = st.CloseWrite()
			if _, err := st.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("no end: %v", err)
			}
		})
	}
	talking.Wait()
	for _, s := range []*Session{near, far} {
		require.NoError(t, s.Close())
	}
	serving.Wait()
}

// What is in a buffer is what came, whatever came before and was read of it, and nothing large is kept when it is empty.
func FuzzBuffer(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add([]byte{255, 0, 255, 1, 255, 128})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var b []byte
		var at, came, read int
		for i, step := range steps {
			n := int(step) << 9
			if i%2 == 0 {
				b, at = grow(b, at, n)
				for range n {
					b = append(b, byte(came*7>>3))
					came++
				}
				continue
			}
			for range min(n, len(b)-at) {
				if b[at] != byte(read*7>>3) {
					t.Fatalf("byte %d is another one", read)
				}
				at++
				read++
			}
			if at == len(b) {
				b, at = shrink(b), 0
				require.LessOrEqual(t, cap(b), smallBuffer)
			}
		}
		require.Equal(t, came-read, len(b)-at)
	})
}

// Who says again and again that a stream was taken does not fill the session that it is passed on to, which others share.
func TestThatAStreamWasTakenIsPassedOnOnce(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	agents := NewSession(near, false, true, Config{}, nil)
	shared, other := net.Pipe()
	defer other.Close()
	peers := NewSession(shared, false, true, Config{}, nil) // nobody reads what it writes
	from := newStream(agents, 2, nil)
	agents.streams[2] = from
	to := newStream(peers, 1, nil)
	from.ForwardAccepted(to)
	for range 1_000_000 {
		require.NoError(t, agents.handle(header{kind: frameAccepted, stream: 2}, nil))
	}
	peers.out.Lock()
	waiting := len(peers.pending) + len(peers.spare)
	peers.out.Unlock()
	require.Less(t, waiting, 100)
	require.NoError(t, agents.Close())
	require.NoError(t, peers.Close())
}

// Numbers begin anew after the last one, and pass over those of streams that are still open.
func TestNumbersOfStreamsBeginAnew(t *testing.T) {
	t.Parallel()
	for dialled, want := range map[bool][]uint32{true: {1<<32 - 1, 1, 5}, false: {1<<32 - 2, 2, 6}} {
		near, far := net.Pipe()
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, far) })
		s := NewSession(near, dialled, true, Config{}, nil)
		s.nextID = want[0]
		s.streams[want[1]+2] = newStream(s, want[1]+2, nil)
		for _, id := range want {
			st, err := s.Open(nil)
			require.NoError(t, err)
			require.Equal(t, id, st.id)
			require.True(t, s.isOwn(id))
		}
		require.NoError(t, s.Close())
		_ = far.Close()
		reading.Wait()
	}
}

// A connection may end on one side of a session while a stream is being opened on the other.
func TestAStreamThatIsOpenedTooLateIsNone(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	s := NewSession(near, false, true, Config{}, func(*Stream) { t.Error("a stream of a session that has ended") })
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.handle(header{kind: frameOpen, stream: 1}, []byte("head")), ErrClosed)
}
