package kube_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"lockstep.internal/services/relay/agent/kube"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a proxy with a fake API server, and a session to it.
type fixture struct {
	t       *testing.T
	api     *httptest.Server
	proxy   *kube.Proxy
	session *tunnel.Session
	agent   *tunnel.Session
	// tokenFile has the token of the agent.
	tokenFile string
	// open counts the streams that were not released.
	open atomic.Int64
}

func newFixture(t *testing.T, handler http.HandlerFunc) *fixture {
	t.Helper()
	f := &fixture{t: t, api: httptest.NewUnstartedServer(handler), tokenFile: filepath.Join(t.TempDir(), "token")}
	f.api.EnableHTTP2 = true
	f.api.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	f.api.StartTLS()
	t.Cleanup(f.api.Close)
	require.NoError(t, os.WriteFile(f.tokenFile, []byte("own"), 0o600))
	f.start(&rest.Config{
		Host: f.api.URL, BearerTokenFile: f.tokenFile,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.api.Certificate().Raw}),
		},
	})
	return f
}

func (f *fixture) start(cfg *rest.Config) {
	f.t.Helper()
	var err error
	f.proxy, err = kube.New(cfg, slog.New(slog.DiscardHandler))
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	near, far := net.Pipe()
	f.session = tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	f.agent = tunnel.NewSession(far, true, true, tunnel.Config{}, func(s *tunnel.Stream) {
		f.open.Add(1)
		f.proxy.ServeStream(s, f.agent.LocalDraining(), func() { f.open.Add(-1) })
	})
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{f.session, f.agent} {
		serving.Go(func() { _ = s.Serve() })
	}
	serving.Go(func() { require.NoError(f.t, f.proxy.Run(ctx)) })
	f.t.Cleanup(func() {
		_, _ = f.session.Close(), f.agent.Close()
		require.Eventually(f.t, func() bool {
			return f.open.Load() == 0
		}, time.Minute, time.Millisecond, "all streams are released")
		cancel()
		serving.Wait()
	})
}

// caller sends requests over one stream.
type caller struct {
	*tunnel.Stream

	t     *testing.T
	lines *bufio.Reader
}

func (f *fixture) caller() *caller {
	f.t.Helper()
	s, err := f.session.Open([]byte("head"))
	require.NoError(f.t, err)
	return &caller{Stream: s, t: f.t, lines: bufio.NewReader(s)}
}

const asUser = "Impersonate-User: lockstep:user:7\r\n"

// send sends a request with these header lines.
func (c *caller) send(requestLine, header string, body ...string) {
	c.t.Helper()
	_, err := io.WriteString(c, requestLine+" HTTP/1.1\r\nHost: cluster\r\n"+header+"\r\n"+strings.Join(body, ""))
	require.NoError(c.t, err)
}

func (c *caller) receive() *http.Response {
	c.t.Helper()
	response, err := http.ReadResponse(c.lines, nil)
	require.NoError(c.t, err)
	return response
}

func (c *caller) body(response *http.Response) string {
	c.t.Helper()
	text, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	return string(text)
}

// do sends a request, and returns the status and body of the response.
func (c *caller) do(requestLine, header string, requestBody ...string) (status int, body string) {
	c.t.Helper()
	c.send(requestLine, header, requestBody...)
	response := c.receive()
	return response.StatusCode, c.body(response)
}
