package natsauth_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

func principalOne() natsauth.Principal {
	return natsauth.Principal{Kind: natsauth.KindAgent, AgentID: agentOne}
}

func watchDisconnects() (nats.Option, <-chan struct{}) {
	gone := make(chan struct{}, 100)

	return nats.DisconnectErrHandler(func(*nats.Conn, error) { gone <- struct{}{} }), gone
}

func TestRevocationDisconnects(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	disconnector := &natsauth.Disconnector{Conn: c.static(t, natsauth.PrincipalSystem), ConnectTimeout: time.Nanosecond}
	option, gone := watchDisconnects()
	watcher := c.agent(t, agentOne, option)
	dispatcher := c.agent(t, agentOne, option)
	other := c.agent(t, agentTwo)

	reconnects := other.Stats().Reconnects

	c.directory.revoke(agentOne)

	kicked, err := disconnector.Disconnect(testContext(t), principalOne())
	require.NoError(t, err)
	require.Equal(t, 2, kicked)
	receive(t, gone)
	receive(t, gone)

	// They reconnect and are rejected.
	require.ErrorIs(t, receive(t, watcher.complaints), nats.ErrAuthorization)
	require.ErrorIs(t, receive(t, dispatcher.complaints), nats.ErrAuthorization)
	require.False(t, watcher.IsConnected())
	require.False(t, dispatcher.IsConnected())

	// Other clients stay connected, and no connection of the principal is left.
	_, err = other.jetStream(t).Publish(testContext(t), "lockstep.local.observed.18.resync", nil)
	require.NoError(t, err)
	require.Equal(t, reconnects, other.Stats().Reconnects)

	kicked, err = disconnector.DisconnectOnce(testContext(t), principalOne())
	require.NoError(t, err)
	require.Zero(t, kicked)
}

// TestDisconnectCatchesConcurrentAuthorizations: the authenticator accepts a client just before the revocation, and its
// answer arrives after the first round.
func TestDisconnectCatchesConcurrentAuthorizations(t *testing.T) {
	t.Parallel()

	slow := &slowDirectory{directory: newDirectory(), entered: make(chan struct{}), leave: make(chan struct{})}
	c := startCell(t, func(r *natsauth.Responder) { r.Authenticator = slow })
	disconnector := &natsauth.Disconnector{Conn: c.static(t, natsauth.PrincipalSystem), ConnectTimeout: time.Hour}
	option, disconnected := watchDisconnects()
	gone := make(chan struct{})

	go func() {
		defer close(gone)
		// The server may close the connection before the client knows that it was accepted.
		conn, err := nats.Connect(
			c.server.ClientURL(), nats.UserInfo("17", "token-one"), nats.Timeout(timeout), nats.NoReconnect(), option,
		)
		if err != nil {
			assert.NotErrorIs(t, err, nats.ErrAuthorization)
			assert.NotErrorIs(t, err, nats.ErrTimeout)
			return
		}
		<-disconnected
		conn.Close()
	}()

	receive(t, slow.entered)

	kicked, err := disconnector.DisconnectOnce(testContext(t), principalOne())
	require.NoError(t, err)
	require.Zero(t, kicked, "it is not there yet")

	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()

	result := make(chan error, 1)

	go func() {
		_, err := disconnector.Disconnect(ctx, principalOne())
		result <- err
	}()

	close(slow.leave)
	receive(t, gone)
	cancel()
	require.ErrorIs(t, receive(t, result), context.Canceled)
}

type slowDirectory struct {
	*directory

	entered, leave chan struct{}
}

func (d *slowDirectory) Authenticate(ctx context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	p, err := d.directory.Authenticate(ctx, c)

	close(d.entered)
	<-d.leave

	return p, err
}

func TestDisconnectOnEveryServerOfACluster(t *testing.T) {
	t.Parallel()

	dir, servers := startCluster(t, false)
	c := &cell{dir: dir, server: servers[0], directory: newDirectory()}
	c.startResponder(t)

	option, gone := watchDisconnects()
	for _, s := range servers {
		dialAgent(t, s.ClientURL(), agentOne, option)
	}

	c.directory.revoke(agentOne)

	system := c.static(t, natsauth.PrincipalSystem)
	awaitActiveServers(t, system)

	disconnector := &natsauth.Disconnector{Conn: system, ConnectTimeout: time.Nanosecond}
	kicked, err := disconnector.Disconnect(testContext(t), principalOne())
	require.NoError(t, err)
	require.Equal(t, clusterSize, kicked)

	for range clusterSize {
		receive(t, gone)
	}
}

func TestDisconnectFaults(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	conn := c.static(t, natsauth.PrincipalSystem)
	disconnector := &natsauth.Disconnector{Conn: conn}

	_, err := disconnector.DisconnectOnce(testContext(t), natsauth.Principal{})
	require.ErrorIs(t, err, natsauth.ErrInvalidPrincipal)

	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	_, err = disconnector.Disconnect(ended, principalOne())
	require.ErrorIs(t, err, context.Canceled)

	conn.Close()
	_, err = disconnector.Disconnect(testContext(t), principalOne())
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}
