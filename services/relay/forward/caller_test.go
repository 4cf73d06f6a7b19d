package forward_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
)

// caller has one connection to the relay, and sends requests over it.
type caller struct {
	f    *fixture
	conn net.Conn
	r    *bufio.Reader
}

func (f *fixture) connect() *caller {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	require.NoError(f.t, err)
	if f.server.TLS != nil {
		roots := f.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "example.com"})
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(f.t, conn.SetDeadline(time.Now().Add(timeout)))
	return &caller{f, conn, bufio.NewReader(conn)}
}

// sendRaw sends text. It replaces {token} by a token of the developer.
func (c *caller) sendRaw(text string) {
	c.f.t.Helper()
	_, err := io.WriteString(c.conn, strings.ReplaceAll(text, "{token}", c.f.token(developer)))
	require.NoError(c.f.t, err)
}

// getRequest is a GET request for a path of the target.
func getRequest(path string) string {
	return "GET /agents/7/http/shop" + path + " HTTP/1.1\r\nHost: relay\r\nAuthorization: {token}\r\n\r\n"
}

// postRequest is a POST request for a path of the target.
func postRequest(path, body string) string {
	return fmt.Sprintf("POST /agents/7/http/shop%s HTTP/1.1\r\nHost: relay\r\nAuthorization: {token}\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, len(body), body)
}

// receive reads a response to its end.
func (c *caller) receive() (*http.Response, string) {
	c.f.t.Helper()
	response, err := http.ReadResponse(c.r, nil)
	require.NoError(c.f.t, err)
	return response, read(c.f.t, response)
}

func (c *caller) get(path string) string {
	c.f.t.Helper()
	c.sendRaw(getRequest(path))
	response, body := c.receive()
	require.Equal(c.f.t, http.StatusOK, response.StatusCode, body)
	return body
}

// lastRecord is the last audit record.
func (f *fixture) lastRecord() audit.Record {
	f.t.Helper()
	all := f.auditRecords()
	require.NotEmpty(f.t, all)
	return all[len(all)-1]
}

// echo responds with the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.URL.Path, body, r.Header.Get("X-Forwarded-Proto"))
}

// blockingTarget holds each request until the test releases it, or the request is cancelled. It responds to
// paths below /plain at once.
type blockingTarget struct {
	started, cancelled chan string
	release            chan struct{}
	begin              string // of the body, sent before the target blocks
}

func newBlockingTarget(begin string) *blockingTarget {
	return &blockingTarget{
		started: make(chan string, 9), cancelled: make(chan string, 9), release: make(chan struct{}), begin: begin,
	}
}

func (b *blockingTarget) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/plain") {
		echo(w, r)
		return
	}
	if b.begin != "" {
		_, _ = io.WriteString(w, b.begin)
		_ = http.NewResponseController(w).Flush()
	}
	b.started <- r.URL.Path
	select {
	case <-b.release:
		_, _ = io.WriteString(w, "released")
	case <-r.Context().Done():
		b.cancelled <- r.URL.Path
	}
}

// readResponse reads a response to its end; failed reports whether it ended early.
func (c *caller) readResponse(method string) (response *http.Response, body []byte, failed bool) {
	c.f.t.Helper()
	response, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err == nil {
		body, err = io.ReadAll(response.Body)
	}
	require.NotErrorIs(c.f.t, err, os.ErrDeadlineExceeded, "no response")
	return response, body, err != nil
}
