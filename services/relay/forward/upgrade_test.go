package forward_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
)

func TestUpgradedConnectionSupportsHalfClose(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
			r.Header.Get("Upgrade"))
		received, _ := io.ReadAll(rw)
		_, _ = conn.Write(bytes.ToUpper(received))
	})))
	for _, path := range []string{"/kubernetes/api/v1/namespaces/a/pods/b/exec", "/http/shop/"} {
		conn, r := f.sendRaw(developer, "POST /agents/7"+path+" HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n")
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		_, err = io.WriteString(conn, "payload")
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		received, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, "PAYLOAD", string(received))
		all := f.auditRecords()
		require.Len(t, all, 2)
		require.Equal(t, http.StatusSwitchingProtocols, all[1].Status)
		require.EqualValues(t, len("payload"), all[1].BytesSent)
		require.EqualValues(t, len("payload"), all[1].BytesReceived)
		require.Empty(t, all[1].Error)
	}
}

func TestTCPBytesAreForwardedUnchanged(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		received, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(received))
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	f := newFixture(t, newAgentAt(t, l.Addr().String()))
	conn, r := f.sendRaw(developer,
		"GET /agents/7/tcp/db HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nGET / HTTP/1.1\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	received, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "GET / HTTP/1.1\r\n\r\n", string(received))
	all := f.auditRecords()
	require.Len(t, all, 2)
	require.EqualValues(t, 18, all[1].BytesSent)
	require.Equal(t, audit.TCP, all[1].Protocol)
}
