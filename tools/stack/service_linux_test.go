package stack

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRestartedServiceKeepsItsPort(t *testing.T) {
	t.Parallel()
	s := shell(t, new(bytes.Buffer), logReady+`exec sleep 600`)
	s.listen = map[string]string{"api": anyPort, "fixed": "127.0.0.1:7"}
	configure, seen := s.configure, []map[string]string{}
	s.configure = func(addresses map[string]string) configuration {
		seen = append(seen, addresses)
		return configure(addresses)
	}
	require.NoError(t, s.start(t.Context()))
	require.NoError(t, s.kill())
	require.NoError(t, s.start(t.Context()))
	require.NoError(t, s.kill())
	require.NotEqual(t, anyPort, seen[0]["api"])
	require.Equal(t, "127.0.0.1:7", seen[0]["fixed"])
	require.Equal(t, seen[0], seen[1])

	// The port is bound as long as the stack runs: no other process gets it as a free port.
	_, err := bound(seen[0]["api"])
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, s.release())
	socket, err := bound(seen[0]["api"])
	require.NoError(t, err)
	require.NoError(t, syscall.Close(socket))
}

// bound binds a socket without SO_REUSEADDR.
func bound(address string) (int, error) {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return 0, err
	}
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = syscall.Bind(socket, &syscall.SockaddrInet4{Addr: parsed.Addr().As4(), Port: int(parsed.Port())})
	if err != nil {
		return 0, errors.Join(err, syscall.Close(socket))
	}
	return socket, nil
}
