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

// countingConn records what is written, and counts the writes.
type countingConn struct {
	net.Conn

	mu      sync.Mutex
	written bytes.Buffer
	writes  int
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	return c.written.Write(p)
}

// TLS may write a key update from Read, concurrently with Write.
func TestConcurrentWritesAreNotInterleaved(t *testing.T) {
	t.Parallel()
	conn := &countingConn{}
	c := &coalescingConn{Conn: conn}
	var writing sync.WaitGroup
	writing.Go(func() {
		for range 2000 {
			c.hold()
			for range 3 {
				_, _ = c.Write([]byte("aaaa"))
			}
			_ = c.release()
		}
	})
	writing.Go(func() {
		for range 2000 {
			_, _ = c.Write([]byte("b"))
		}
	})
	writing.Wait()
	require.Equal(t, 24_000, bytes.Count(conn.written.Bytes(), []byte("a")))
	require.Equal(t, 2000, bytes.Count(conn.written.Bytes(), []byte("b")))
	require.Nil(t, c.out, "the buffer is released")
}

func TestBufferedWritesAreCoalesced(t *testing.T) {
	t.Parallel()
	conn := &countingConn{}
	c := &coalescingConn{Conn: conn}
	sent := make([]byte, 2*coalesceSize+5)
	_, err := rand.Read(sent)
	require.NoError(t, err)
	c.hold()
	for rest := sent; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		written, err := c.Write(rest[:n])
		require.NoError(t, err)
		require.Equal(t, n, written)
		rest = rest[n:]
	}
	require.Equal(t, 2, conn.writes)
	require.NoError(t, c.release())
	require.Equal(t, 3, conn.writes)
	require.Equal(t, sent, conn.written.Bytes())
	require.NoError(t, c.release(), "the buffer is empty")
	require.Equal(t, 3, conn.writes)
}

// chunkedConn returns data in chunks of the given sizes.
type chunkedConn struct {
	net.Conn

	rest  []byte
	sizes []byte
	next  int
}

func (c *chunkedConn) Read(p []byte) (int, error) {
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

func FuzzCoalescingRead(f *testing.F) {
	f.Add([]byte{0}, []byte{5, 255}, uint16(1000))
	f.Add([]byte{255, 0, 255}, []byte{1}, uint16(65535))
	f.Fuzz(func(t *testing.T, chunkSizes, readSizes []byte, times uint16) {
		// 17 bytes, a prime length, so that shifted data differs.
		sent := bytes.Repeat([]byte("0123456789abcdef~"), int(times))
		c := &coalescingConn{Conn: &chunkedConn{rest: sent, sizes: chunkSizes}}
		var got []byte
		for i := 0; ; i++ {
			size := 1
			if len(readSizes) > 0 {
				size += int(readSizes[i%len(readSizes)]) << 4
			}
			p := make([]byte, size)
			n, err := c.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			require.Positive(t, n)
		}
		require.True(t, bytes.Equal(sent, got))
		require.Nil(t, c.in, "the buffer is released")
	})
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"relay"},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

func TestTLSOverCoalesce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	client := tls.Client(Coalesce(dialled), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	server := tls.Server(Coalesce(accepted), &tls.Config{
		Certificates: []tls.Certificate{certificate(t)}, MinVersion: tls.VersionTLS13,
	})
	var handshake sync.WaitGroup
	handshake.Go(func() { _ = client.Handshake() }) // the reads below check the result
	require.NoError(t, server.Handshake())
	handshake.Wait()
	sent := make([]byte, 3<<20)
	_, err = rand.Read(sent)
	require.NoError(t, err)
	var both sync.WaitGroup
	for _, c := range []*tls.Conn{client, server} {
		both.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 300_001)
				if _, err := coalescedWriter(c).Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		})
		both.Go(func() {
			got := make([]byte, len(sent))
			_, err := io.ReadFull(c, got)
			if err != nil || !bytes.Equal(sent, got) {
				t.Errorf("the received bytes differ from the sent ones: %v", err)
				_ = c.Close()
			}
		})
	}
	both.Wait()
	for _, c := range []*tls.Conn{client, server} {
		coalescing, ok := c.NetConn().(*coalescingConn)
		require.True(t, ok)
		require.Nil(t, coalescing.out)
		_ = c.NetConn().Close()
	}
}

// tlsPair returns both ends of a TLS connection over Coalesce, after the handshake.
func tlsPair(t *testing.T, dialled, accepted net.Conn) (client, server *tls.Conn) {
	t.Helper()
	client = tls.Client(Coalesce(dialled), &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true,
	})
	server = tls.Server(Coalesce(accepted), &tls.Config{
		Certificates: []tls.Certificate{certificate(t)}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
	})
	var handshake sync.WaitGroup
	handshake.Go(func() { _ = client.Handshake() }) // the caller's reads check the result
	require.NoError(t, server.Handshake())
	handshake.Wait()
	return client, server
}

// scriptedConn returns one piece per Read.
type scriptedConn struct {
	net.Conn

	pieces [][]byte
}

func (c *scriptedConn) Read(p []byte) (int, error) {
	if len(c.pieces) == 0 {
		return 0, errScriptEnded
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

var errScriptEnded = errors.New("no more scripted data")

// Complete records are returned together; an incomplete record is not waited for.
func TestRecordsThatAreReadyAreReadTogether(t *testing.T) {
	t.Parallel()
	const size = 10_000
	near, far := net.Pipe()
	client, server := tlsPair(t, near, far)
	captured := &countingConn{}
	from, ok := client.NetConn().(*coalescingConn)
	require.True(t, ok)
	from.Conn = captured
	sent := make([]byte, 10*size)
	_, err := rand.Read(sent)
	require.NoError(t, err)
	var ends []int // of records, in what is captured
	for i := range 10 {
		_, err := client.Write(sent[i*size : (i+1)*size])
		require.NoError(t, err)
		ends = append(ends, captured.written.Len())
	}
	raw := captured.written.Bytes()
	to, ok := server.NetConn().(*coalescingConn)
	require.True(t, ok)
	to.Conn = &scriptedConn{
		Conn: far,
		pieces: [][]byte{
			raw[:ends[0]-7], raw[ends[0]-7 : ends[1]+3], raw[ends[1]+3 : ends[3]+5000], raw[ends[3]+5000 : ends[8]+1],
			raw[ends[8]+1:],
		},
	}
	to.busy = true // as after a read that filled its buffer
	var got []byte
	for _, want := range []int{2, 2, 5, 1} {
		p := make([]byte, len(sent))
		n, err := to.readReady(server, p)
		require.NoError(t, err)
		require.Equal(t, want*size, n)
		got = append(got, p[:n]...)
	}
	require.True(t, bytes.Equal(sent, got))
	_, err = to.readReady(server, make([]byte, 1))
	require.ErrorIs(t, err, errScriptEnded)
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}
