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

func pair(t testing.TB) (near, far *net.TCPConn) {
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

// joined is a caller and a target with a session between them.
func joined(t testing.TB) (caller, target *net.TCPConn, errs chan error) {
	t.Helper()
	near, far := connect(t, tunnel.Config{}).stream(t)
	caller, callers := pair(t)
	targets, target := pair(t)
	errs = make(chan error, 2)
	join := func(a, b tunnel.Conn) {
		_, _, err := tunnel.Join(a, b)
		errs <- err
	}
	go join(callers, near)
	go join(far, targets)
	return caller, target, errs
}

func TestWhatIsJoinedIsOneConnection(t *testing.T) {
	t.Parallel()
	caller, target, errs := joined(t)
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

// Who is cut off must not take what came for all there was.
func TestAFailureIsPassedOnAsOne(t *testing.T) {
	t.Parallel()
	caller, target, errs := joined(t)
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

// A target that has stopped reading and sends nothing must not outlive who asked for it.
func TestWhoLeavesIsNotHeldByWhoIsStuck(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*ends, *tunnel.Stream){
		"the stream is given up": func(_ *ends, near *tunnel.Stream) { near.Reset(tunnel.Cancelled, "enough") },
		"the session ends":       func(e *ends, _ *tunnel.Stream) { _ = e.dialled.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := connect(t, tunnel.Config{})
			near, far := e.stream(t)
			targets, target := pair(t)
			joined := make(chan error, 1)
			go func() {
				_, _, err := tunnel.Join(far, targets)
				joined <- err
			}()
			require.NoError(t, near.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
			var err error
			for err == nil { // until the target's buffers and the window are full
				_, err = near.Write(make([]byte, 64<<10))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			leave(e, near)
			require.Error(t, <-joined)
			_, err = io.Copy(io.Discard, target)
			require.ErrorContains(t, err, "reset")
		})
	}
}

// A connection that just ends is no end of what a stream carries: a part would be taken for the whole.
func TestAConnectionThatEndsIsNoEndOfItsStreams(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	opened := make(chan *tunnel.Stream, 1)
	a, b := tunnel.NewSession(near, true, true, tunnel.Config{}, nil), tunnel.NewSession(far, false, true, tunnel.Config{}, func(s *tunnel.Stream) { opened <- s })
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{a, b} {
		serving.Go(func() { _ = s.Serve() })
	}
	defer serving.Wait()
	_, err := a.Open([]byte("x"))
	require.NoError(t, err)
	st := <-opened
	require.NoError(t, near.Close())
	_, err = st.WriteTo(io.Discard)
	require.ErrorIs(t, err, tunnel.ErrClosed)
	_, err = st.Read(make([]byte, 1))
	require.NotErrorIs(t, err, io.EOF)
}

// A caller over TLS, too, can tell what was cut from what is whole.
func TestABrokenStreamIsNoGoodByeOverTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	dialled, plain := pair(t)
	caller := tls.Client(dialled, &tls.Config{InsecureSkipVerify: true})
	defer caller.Close()
	secured := tls.Server(tunnel.Coalesce(plain), server.TLS)
	shaken := make(chan error, 1)
	go func() { shaken <- secured.HandshakeContext(t.Context()) }()
	require.NoError(t, caller.HandshakeContext(t.Context()))
	require.NoError(t, <-shaken)
	near, far := net.Pipe()
	a, b := tunnel.NewSession(near, true, true, tunnel.Config{}, nil), tunnel.NewSession(far, false, true, tunnel.Config{}, func(s *tunnel.Stream) {
		_, _, _ = tunnel.Join(s, secured)
	})
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{a, b} {
		serving.Go(func() { _ = s.Serve() })
	}
	defer serving.Wait()
	defer a.Close()
	st, err := a.Open([]byte("x"))
	require.NoError(t, err)
	_, err = io.WriteString(st, "a part")
	require.NoError(t, err)
	part := make([]byte, 6)
	_, err = io.ReadFull(caller, part)
	require.NoError(t, err)
	st.Reset(tunnel.Broken, "it broke")
	_, err = caller.Read(part)
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)
}
