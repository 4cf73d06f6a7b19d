package port_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/port"
)

func TestHeldPortIsNotAssignedAgain(t *testing.T) {
	t.Parallel()
	const many = 500
	all := map[int]bool{}
	var config net.ListenConfig
	for range many {
		held, err := port.Hold()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, held.Release()) })
		require.False(t, all[held.Number()])
		all[held.Number()] = true
	}
	for range many {
		listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.False(t, all[listener.Addr().(*net.TCPAddr).Port])
		require.NoError(t, listener.Close())
	}
}
