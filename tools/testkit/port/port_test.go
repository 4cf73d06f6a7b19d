package port_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/port"
)

func TestServerCanListenOnHeldPort(t *testing.T) {
	t.Parallel()
	held, err := port.Hold()
	require.NoError(t, err)
	var config net.ListenConfig
	var dialer net.Dialer
	for range 3 {
		_, err = dialer.DialContext(t.Context(), "tcp", held.Address())
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "no server listens")
		listener, err := config.Listen(t.Context(), "tcp", held.Address())
		require.NoError(t, err)
		require.Equal(t, held.Number(), listener.Addr().(*net.TCPAddr).Port)
		_, err = config.Listen(t.Context(), "tcp", held.Address())
		require.ErrorIs(t, err, syscall.EADDRINUSE, "one listener at a time")
		conn, err := dialer.DialContext(t.Context(), "tcp", held.Address())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.NoError(t, listener.Close())
	}
	require.NoError(t, held.Release())
	require.NoError(t, held.Release())
	var none *port.Held
	require.NoError(t, none.Release())
}

func TestPortOfAnotherProgramIsRefused(t *testing.T) {
	t.Parallel()
	held, err := port.Hold()
	require.NoError(t, err)
	require.NoError(t, held.Release())
	again, err := port.HoldNumber(held.Number())
	require.NoError(t, err)
	require.Equal(t, held.Number(), again.Number())
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", again.Address())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(listener.Close(), again.Release())) })
	_, err = port.HoldNumber(held.Number())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}
