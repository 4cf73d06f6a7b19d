package main

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCutLinkForwardsNothingUntilItIsRestored(t *testing.T) {
	t.Parallel()
	target, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go serveTarget(target, "a")
	l, err := newLink(t.Context(), target.Addr().String())
	require.NoError(t, err)
	conn, err := net.Dial("tcp", l.address())
	require.NoError(t, err)
	answers := bufio.NewReader(conn)
	ask := func(question string) {
		_, err := fmt.Fprintln(conn, question)
		require.NoError(t, err)
	}
	requireAnswer := func(question string) {
		line, err := answers.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, answerOf("a", question)+"\n", line)
	}
	ask("1")
	requireAnswer("1")

	l.cut()
	ask("2")
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = answers.ReadString('\n')
	require.ErrorContains(t, err, "i/o timeout")
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	l.restore()
	requireAnswer("2")

	require.NoError(t, target.Close())
	require.NoError(t, l.close())
	_, err = answers.ReadString('\n')
	require.Error(t, err)
	require.NoError(t, conn.Close())
}
