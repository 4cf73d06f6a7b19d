package proxy_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
)

// caller has one connection to the relay, and asks over it once and again.
type caller struct {
	f    *front
	conn net.Conn
	r    *bufio.Reader
}

func (f *front) call() *caller {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	require.NoError(f.t, err)
	if f.server.TLS != nil {
		roots := f.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "example.com"})
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(f.t, conn.SetDeadline(time.Now().Add(soon)))
	return &caller{f, conn, bufio.NewReader(conn)}
}

// say what is written, with a developer's token for {token}.
func (c *caller) say(text string) {
	c.f.t.Helper()
	_, err := io.WriteString(c.conn, strings.ReplaceAll(text, "{token}", c.f.token(developer)))
	require.NoError(c.f.t, err)
}

// plain is the head of a plain request of a target.
func plain(path string) string { return about(path) + "\r\n" }

// about is such a head without its end.
func about(path string) string {
	return "GET /agents/7/http/shop" + path + " HTTP/1.1\r\nHost: relay\r\nAuthorization: {token}\r\n"
}

// hear an answer to its end.
func (c *caller) hear() (*http.Response, string) {
	c.f.t.Helper()
	response, err := http.ReadResponse(c.r, nil)
	require.NoError(c.f.t, err)
	return response, read(c.f.t, response)
}

// get asks for a path in a plain way.
func (c *caller) get(path string) string {
	c.f.t.Helper()
	c.say(plain(path))
	response, body := c.hear()
	require.Equal(c.f.t, http.StatusOK, response.StatusCode, body)
	return body
}

// taken asks until the connection is taken from the server.
func (c *caller) taken(path string) *caller {
	c.f.t.Helper()
	_ = c.get(path)
	require.Equal(c.f.t, 1, c.f.handler.Directs())
	return c
}

// over reads what comes until the connection ends.
func (c *caller) over() string {
	c.f.t.Helper()
	rest, err := io.ReadAll(c.r)
	var timeout net.Error
	if err != nil {
		require.False(c.f.t, errors.As(err, &timeout) && timeout.Timeout(), "it does not end")
	}
	return string(rest)
}

// gone waits until no connection is taken any more.
func (f *front) gone() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.handler.Directs() == 0 }, soon, time.Millisecond)
}

// last record.
func (f *front) last() audit.Record {
	f.t.Helper()
	all := f.publish()
	require.NotEmpty(f.t, all)
	return all[len(all)-1]
}
