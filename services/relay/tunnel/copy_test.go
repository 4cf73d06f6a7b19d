package tunnel_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"testing"

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
