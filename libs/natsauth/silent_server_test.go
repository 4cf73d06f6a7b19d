package natsauth_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/tools/testkit/port"
)

// TestSilentServerDoesNotDelayDisconnect: one of two servers does not answer. Connections to the other one are
// closed, and the call reports the missing answer.
func TestSilentServerDoesNotDelayDisconnect(t *testing.T) {
	t.Parallel()

	near, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, near.Release()) })

	route := startRouteProxy(t, near.Address())
	dir := initDir(t, natsauth.Options{Cluster: &natsauth.Cluster{
		Name: "test", ListenPort: -1, Routes: []string{"nats://" + route.address},
	}})
	answers := launchServer(t, dir, func(o *server.Options) {
		o.ServerName, o.StoreDir, o.JetStream = "answers", t.TempDir(), false
		o.Cluster.Port, o.Routes = near.Number(), server.RoutesFromStr("nats://"+near.Address())
	})
	silent := launchServer(t, dir, func(o *server.Options) {
		o.ServerName, o.StoreDir, o.JetStream = "silent", t.TempDir(), false
	})

	for _, s := range []*server.Server{answers, silent} {
		require.True(t, s.ReadyForConnections(timeout))
		require.Eventually(t, func() bool { return len(s.ActivePeers()) == 1 }, timeout, 10*time.Millisecond)
	}

	c := &cell{dir: dir, server: answers, directory: newDirectory()}
	c.startResponder(t)

	disconnector := &natsauth.Disconnector{Conn: c.static(t, natsauth.PrincipalSystem)}
	option, gone := watchDisconnects()
	c.agent(t, agentOne, option)
	dialAgent(t, silent.ClientURL(), agentOne)
	c.directory.revoke(agentOne)
	route.freeze(t)

	ctx, cancel := context.WithCancel(testContext(t))
	result := make(chan error, 1)

	go func() {
		_, err := disconnector.DisconnectOnce(ctx, principalOne())
		result <- err
	}()

	receive(t, gone)
	require.Empty(t, result, "it waits for the other server")
	cancel()
	require.ErrorIs(t, receive(t, result), natsauth.ErrIncompleteDisconnect)
}

// routeProxy forwards the routes between two servers until it is frozen. Frozen routes stay open.
type routeProxy struct {
	address string

	// forwarding is locked for reading while bytes are forwarded.
	forwarding sync.RWMutex
}

func startRouteProxy(t *testing.T, target string) *routeProxy {
	t.Helper()

	var (
		config  net.ListenConfig
		dialer  net.Dialer
		running sync.WaitGroup
	)

	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	p := &routeProxy{address: listener.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	forward := func(to, from net.Conn) {
		stop := context.AfterFunc(ctx, func() { _ = from.Close() })
		defer stop()
		defer to.Close()

		_, _ = io.Copy(routeWriter{p, to}, from)
	}

	running.Go(func() {
		for {
			accepted, err := listener.Accept()
			if err != nil {
				return
			}

			dialed, err := dialer.DialContext(ctx, "tcp", target)
			if err != nil {
				_ = accepted.Close()

				continue
			}

			running.Go(func() { forward(accepted, dialed) })
			running.Go(func() { forward(dialed, accepted) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()

		cancel()
		running.Wait()
	})

	return p
}

// freeze stops forwarding until the test ends.
func (p *routeProxy) freeze(t *testing.T) {
	t.Helper()
	p.forwarding.Lock()
	t.Cleanup(p.forwarding.Unlock)
}

type routeWriter struct {
	proxy *routeProxy
	to    io.Writer
}

func (w routeWriter) Write(data []byte) (int, error) {
	w.proxy.forwarding.RLock()
	defer w.proxy.forwarding.RUnlock()

	return w.to.Write(data)
}
