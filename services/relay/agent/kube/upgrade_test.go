package kube_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/tunnel"
)

// echo upgrades, writes a greeting and echoes until the caller half-closes.
func echo(upgrade string, ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != upgrade || r.Header.Get("Authorization") != "Bearer own" ||
			r.Header.Get("Impersonate-User") != "lockstep:user:7" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n" +
			"Upgrade: " + upgrade + "\r\n\r\nwelcome\n")
		_ = rw.Flush()
		_, err = io.Copy(conn, rw)
		_, _ = io.WriteString(conn, "bye\n")
		ended <- err
	}
}

func TestUpgradedConnection(t *testing.T) {
	t.Parallel()
	for _, upgrade := range []string{"SPDY/3.1", "websocket"} {
		t.Run(upgrade, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			f := newFixture(t, echo(upgrade, ended))
			c := f.caller()
			c.send("POST /api/v1/namespaces/a/pods/b/exec?command=sh", asUser+"Connection: Upgrade\r\nUpgrade: "+upgrade+"\r\n")
			response := c.receive()
			require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
			require.Equal(t, upgrade, response.Header.Get("Upgrade"))
			line, err := c.lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "welcome\n", line)
			sent := strings.Repeat("both directions, ", 100_000)
			go func() {
				_, _ = io.WriteString(c, sent)
				_ = c.CloseWrite()
			}()
			back, err := io.ReadAll(c.lines)
			require.NoError(t, err)
			require.Equal(t, sent+"bye\n", string(back), "data after the caller's half-close is received")
			require.NoError(t, <-ended)
		})
	}
}

// A blocked API server must not keep a cancelled request open.
func TestCancelWhileAPIServerIsBlocked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header string
		cancel func(*fixture, *caller)
	}{
		"body, stream reset": {
			"Content-Length: 100000000\r\n",
			func(_ *fixture, c *caller) { c.Reset(tunnel.Cancelled, "no longer needed") },
		},
		"body, session lost": {
			"Content-Length: 100000000\r\n",
			func(f *fixture, _ *caller) { _ = f.session.Close() },
		},
		"upgrade, stream reset": {
			"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
			func(_ *fixture, c *caller) { c.Reset(tunnel.Cancelled, "no longer needed") },
		},
		"upgrade, session lost": {
			"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
			func(f *fixture, _ *caller) { _ = f.session.Close() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started, resume, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			f := newFixture(t, func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				if r.Header.Get("Upgrade") == "" {
					close(started)
					<-r.Context().Done()
					return
				}
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
				_ = rw.Flush()
				close(started)
				<-resume
				_, _ = io.Copy(io.Discard, conn)
			})
			caller := f.caller()
			caller.send("POST /", asUser+c.header)
			<-started
			require.NoError(t, caller.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
			var err error
			for err == nil {
				_, err = caller.Write(make([]byte, 64<<10))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			c.cancel(f, caller)
			require.Eventually(t, func() bool { return f.open.Load() == 0 }, time.Minute, time.Millisecond)
			close(resume)
			<-ended
		})
	}
}
