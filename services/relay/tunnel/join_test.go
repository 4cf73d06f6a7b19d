package tunnel_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/tunnel"
)

// join joins a new stream with a TCP target.
func join(t *testing.T, e *sessionPair) (near *tunnel.Stream, _ io.ReadWriteCloser, joined chan error) {
	t.Helper()
	near, far := e.stream(t)
	targetSide, target := newConnPair(t)
	joined = make(chan error, 1)
	go func() {
		_, _, err := tunnel.Join(far, targetSide)
		joined <- err
	}()
	return near, target, joined
}

// pattern returns bytes that do not repeat.
func pattern(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i >> 8 * (i & 3))
	}
	return out
}

// A stalled target blocks only its writer, and receives all bytes later.
func TestStalledTargetBlocksOnlyItsWriter(t *testing.T) {
	t.Parallel()
	e := newSessionPair(t, tunnel.Config{Window: 64 << 10})
	blocked, stalledTarget, joined := join(t, e)
	sent := pattern(32 << 20)
	require.NoError(t, blocked.SetWriteDeadline(time.Now().Add(2*time.Second)))
	at := 0
	for at < len(sent) {
		n, err := blocked.Write(sent[at:min(at+1000, len(sent))])
		at += n
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			break
		}
	}
	require.Less(t, at, len(sent), "the target's buffers and the window are full")
	near, target, otherJoined := join(t, e)
	go func() {
		_, _ = io.Copy(target, target)
		_ = target.Close()
	}()
	for range 500 {
		_, err := near.Write([]byte("ping"))
		require.NoError(t, err)
		_, err = io.ReadFull(near, make([]byte, 4))
		require.NoError(t, err)
	}
	require.NoError(t, near.CloseWrite())
	require.NoError(t, <-otherJoined)
	require.NoError(t, blocked.SetWriteDeadline(time.Time{}))
	go func() {
		for ; at < len(sent); at += 1000 {
			if _, err := blocked.Write(sent[at:min(at+1000, len(sent))]); err != nil {
				return
			}
		}
		_ = blocked.CloseWrite()
	}()
	got, err := io.ReadAll(stalledTarget)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, stalledTarget.Close())
	require.NoError(t, <-joined)
}

// Data and the end frame in one message arrive in this order.
func TestEndDoesNotOvertakeData(t *testing.T) {
	t.Parallel()
	e := newSessionPair(t, tunnel.Config{})
	for range 200 {
		near, target, joined := join(t, e)
		_, err := near.Write([]byte("request"))
		require.NoError(t, err)
		require.NoError(t, near.CloseWrite())
		got, err := io.ReadAll(target)
		require.NoError(t, err)
		require.Equal(t, "request", string(got))
		_, err = target.Write([]byte("response"))
		require.NoError(t, err)
		require.NoError(t, target.Close())
		got, err = io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "response", string(got))
		require.NoError(t, <-joined)
	}
}

func TestResetDuringSmallFrames(t *testing.T) {
	t.Parallel()
	e := newSessionPair(t, tunnel.Config{})
	for i := range 100 {
		near, target, joined := join(t, e)
		written := make(chan struct{})
		go func() {
			defer close(written)
			for {
				if _, err := near.Write([]byte("some bytes")); err != nil {
					return
				}
			}
		}()
		_, err := io.ReadFull(target, make([]byte, 1+100*i))
		require.NoError(t, err)
		near.Reset(tunnel.Cancelled, "no longer needed")
		<-written
		_, err = io.Copy(io.Discard, target)
		require.ErrorContains(t, err, "reset", "the target sees a reset, not EOF")
		require.Error(t, <-joined)
	}
}

// newConnPair returns both ends of a TCP connection.
func newConnPair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = dialled.Close()
		_ = accepted.Close()
	})
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// newJoined connects a caller and a target through a session.
func newJoined(t testing.TB) (caller, target *net.TCPConn, errs chan error) {
	t.Helper()
	near, far := newSessionPair(t, tunnel.Config{}).stream(t)
	caller, callerSide := newConnPair(t)
	targetSide, target := newConnPair(t)
	errs = make(chan error, 2)
	join := func(a, b tunnel.Conn) {
		_, _, err := tunnel.Join(a, b)
		errs <- err
	}
	go join(callerSide, near)
	go join(far, targetSide)
	return caller, target, errs
}

func TestJoinForwardsBothDirections(t *testing.T) {
	t.Parallel()
	caller, target, errs := newJoined(t)
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = io.Copy(target, target)
		_ = target.CloseWrite()
	}()
	go func() {
		_, _ = caller.Write(sent)
		_ = caller.CloseWrite()
	}()
	back, err := io.ReadAll(caller)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, back))
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
}

// An aborted connection must not look complete.
func TestJoinForwardsReset(t *testing.T) {
	t.Parallel()
	caller, target, errs := newJoined(t)
	_, err := target.Write([]byte("half of i"))
	require.NoError(t, err)
	_, err = io.ReadFull(caller, make([]byte, 9))
	require.NoError(t, err)
	require.NoError(t, target.SetLinger(0))
	require.NoError(t, target.Close())
	_, err = io.ReadAll(caller)
	require.ErrorContains(t, err, "reset")
	require.Error(t, <-errs)
	require.Error(t, <-errs)
}

// A stalled target connection must close when the caller's stream ends.
func TestJoinEndsWhileTargetIsBlocked(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sessionPair, *tunnel.Stream){
		"stream reset":   func(_ *sessionPair, near *tunnel.Stream) { near.Reset(tunnel.Cancelled, "no longer needed") },
		"session closed": func(e *sessionPair, _ *tunnel.Stream) { _ = e.dialled.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSessionPair(t, tunnel.Config{})
			near, far := e.stream(t)
			targetSide, target := newConnPair(t)
			joined := make(chan error, 1)
			go func() {
				_, _, err := tunnel.Join(far, targetSide)
				joined <- err
			}()
			require.NoError(t, near.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
			var err error
			for err == nil { // until the target's buffers and the window are full
				_, err = near.Write(make([]byte, 64<<10))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			end(e, near)
			require.Error(t, <-joined)
			_, err = io.Copy(io.Discard, target)
			require.ErrorContains(t, err, "reset")
		})
	}
}

// EOF of the connection is an error for its streams, so that partial data does not look complete.
func TestConnectionEOFIsStreamError(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	opened := make(chan *tunnel.Stream, 1)
	dialled := tunnel.NewSession(near, true, true, tunnel.Config{}, nil)
	accepted := tunnel.NewSession(far, false, true, tunnel.Config{}, func(s *tunnel.Stream) { opened <- s })
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{dialled, accepted} {
		serving.Go(func() { _ = s.Serve() })
	}
	defer serving.Wait()
	_, err := dialled.Open([]byte("x"))
	require.NoError(t, err)
	st := <-opened
	require.NoError(t, near.Close())
	_, err = st.WriteTo(io.Discard)
	require.ErrorIs(t, err, tunnel.ErrClosed)
	_, err = st.Read(make([]byte, 1))
	require.NotErrorIs(t, err, io.EOF)
}

// A TLS caller can distinguish an aborted stream from a complete one.
func TestBrokenStreamSendsNoCloseNotify(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	callerConn, relayConn := newConnPair(t)
	caller := tls.Client(callerConn, &tls.Config{InsecureSkipVerify: true})
	defer caller.Close()
	tlsServer := tls.Server(tunnel.Coalesce(relayConn), server.TLS)
	handshake := make(chan error, 1)
	go func() { handshake <- tlsServer.HandshakeContext(t.Context()) }()
	require.NoError(t, caller.HandshakeContext(t.Context()))
	require.NoError(t, <-handshake)
	near, far := net.Pipe()
	dialled := tunnel.NewSession(near, true, true, tunnel.Config{}, nil)
	accepted := tunnel.NewSession(far, false, true, tunnel.Config{}, func(s *tunnel.Stream) {
		_, _, _ = tunnel.Join(s, tlsServer)
	})
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{dialled, accepted} {
		serving.Go(func() { _ = s.Serve() })
	}
	defer serving.Wait()
	defer dialled.Close()
	st, err := dialled.Open([]byte("x"))
	require.NoError(t, err)
	_, err = io.WriteString(st, "a part")
	require.NoError(t, err)
	part := make([]byte, 6)
	_, err = io.ReadFull(caller, part)
	require.NoError(t, err)
	st.Reset(tunnel.TargetConnectionLost, "the target closed the connection")
	_, err = caller.Read(part)
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)
}
