package forward_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/forward"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// agentFixture is an agent in front of a target, and the tunnel to it.
type agentFixture struct {
	t         *testing.T
	transport *forward.Transport
	session   *tunnel.Session
	// opened counts streams. The first refuseFirst of them are reset with NotAccepted.
	opened, refuseFirst atomic.Int64
	// connections generates a connection id for each stream.
	connections atomic.Int64
	target      string
	// deadline of the last request.
	deadline atomic.Pointer[time.Time]
	// connected, if not nil, is closed when the agent connects.
	connected chan struct{}
}

func newAgent(t *testing.T, target http.Handler) *agentFixture {
	t.Helper()
	server := httptest.NewServer(target)
	t.Cleanup(server.Close)
	return newAgentAt(t, server.Listener.Addr().String())
}

func newAgentAt(t *testing.T, target string) *agentFixture {
	t.Helper()
	a := &agentFixture{t: t, target: target}
	near, far := net.Pipe()
	a.session = tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	agent := tunnel.NewSession(far, true, true, tunnel.Config{}, a.serve)
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{a.session, agent} {
		serving.Go(func() { _ = s.Serve() })
	}
	t.Cleanup(func() {
		_, _ = a.session.Close(), agent.Close()
		serving.Wait()
	})
	a.transport = forward.NewTransport(a)
	return a
}

// serve is the agent: it joins each stream with the target.
func (a *agentFixture) serve(s *tunnel.Stream) {
	if a.opened.Add(1) <= a.refuseFirst.Load() {
		s.Reset(tunnel.NotAccepted, "not accepted")
		return
	}
	conn, err := net.Dial("tcp", a.target)
	if err != nil {
		s.Reset(tunnel.Unreachable, err.Error())
		return
	}
	_ = s.Accept()
	_, _, _ = tunnel.Join(s, conn.(*net.TCPConn)) //nolint:dogsled // both ends have the error
}

func (a *agentFixture) Open(
	ctx context.Context, state *connections.RetryState, to route.Destination,
) (*connections.Stream, error) {
	a.deadline.Store(&state.Deadline)
	if a.connected != nil {
		select {
		case <-a.connected:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	s, err := a.session.Open(to.Encode())
	if err != nil {
		return nil, err
	}
	return &connections.Stream{Stream: s, Connection: registry.Connection{ID: a.connections.Add(1)}}, nil
}

func (*agentFixture) AwaitStart(context.Context, <-chan struct{}, time.Time) error { return nil }

func (*agentFixture) AwaitAnswer(
	_ *connections.RetryState, _ *connections.Stream, _ route.Destination, wait func() error,
) error {
	return wait()
}

// toShop returns a context whose requests go to a target of the agent.
func toShop(ctx context.Context) context.Context {
	return forward.WithDestination(ctx, route.Destination{AgentID: 7, Target: "shop"})
}

func (a *agentFixture) do(method, path string, body io.Reader) (*http.Response, error) {
	a.t.Helper()
	request, err := http.NewRequestWithContext(toShop(a.t.Context()), method, "http://shop"+path, body)
	require.NoError(a.t, err)
	return a.transport.RoundTrip(request)
}

func (a *agentFixture) get(path string) string {
	a.t.Helper()
	response, err := a.do(http.MethodGet, path, nil)
	require.NoError(a.t, err)
	return read(a.t, response)
}

func read(t *testing.T, response *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return string(text)
}

// listenAndServe starts a TCP server, calls serve for each connection and returns the address.
func listenAndServe(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return l.Addr().String()
}

// newScriptedAgent has a target that sends fixed responses.
func newScriptedAgent(t *testing.T, responses ...string) *agentFixture {
	t.Helper()
	return newAgentAt(t, listenAndServe(t, func(conn net.Conn) {
		requests := bufio.NewReader(conn)
		for _, response := range responses {
			request, err := http.ReadRequest(requests)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			if _, err := io.WriteString(conn, response); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, requests)
	}))
}

// nextBody sends one more request and returns 4 bytes of its body, or nothing on error.
func (a *agentFixture) nextBody() string {
	a.t.Helper()
	response, err := a.do(http.MethodGet, "/", nil)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	buffer := make([]byte, 4)
	n, _ := io.ReadFull(response.Body, buffer)
	return string(buffer[:n])
}
