package natsauth_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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
	kicker := &natsauth.Disconnector{Conn: c.static(t, natsauth.PrincipalSystem), AdmissionTimeout: time.Nanosecond}
	option, gone := watchDisconnects()
	watcher := c.agent(t, agentOne, option)
	dispatcher := c.agent(t, agentOne, option)
	other := c.agent(t, agentTwo)

	c.directory.revoke(agentOne)

	kicked, err := kicker.Disconnect(testContext(t), principalOne())
	require.NoError(t, err)
	require.Equal(t, 2, kicked)
	receive(t, gone)
	receive(t, gone)

	// They try to come back and are refused.
	require.ErrorIs(t, receive(t, watcher.complaints), nats.ErrAuthorization)
	require.ErrorIs(t, receive(t, dispatcher.complaints), nats.ErrAuthorization)
	require.False(t, watcher.IsConnected())
	require.False(t, dispatcher.IsConnected())

	// Nobody else has noticed, and there is nobody left to kick.
	_, err = other.jetStream(t).Publish(testContext(t), "lockstep.local.observed.18.resync", nil)
	require.NoError(t, err)
	require.Zero(t, other.Reconnects)

	kicked, err = kicker.DisconnectOnce(testContext(t), principalOne())
	require.NoError(t, err)
	require.Zero(t, kicked)
}

// TestDisconnectCatchesConcurrentAdmissions: the authenticator says yes just before the revocation,
// its answer arrives after the first sweep.
func TestDisconnectCatchesConcurrentAdmissions(t *testing.T) {
	t.Parallel()

	slow := &slowDirectory{directory: newDirectory(), entered: make(chan struct{}), leave: make(chan struct{})}
	c := startCell(t, func(r *natsauth.Responder) { r.Authenticator = slow })
	kicker := &natsauth.Disconnector{
		Conn: c.static(t, natsauth.PrincipalSystem), AdmissionTimeout: 5 * time.Second,
	} // which is as long as a busy machine may take to admit it
	option, gone := watchDisconnects()
	admitted := make(chan *nats.Conn, 1)

	go func() {
		conn, err := nats.Connect(
			c.server.ClientURL(), nats.UserInfo("17", "token-one"), nats.Timeout(patience), nats.NoReconnect(), option,
		)
		if err != nil {
			t.Error(err)
		}
		admitted <- conn
	}()

	receive(t, slow.entered)

	kicked, err := kicker.DisconnectOnce(testContext(t), principalOne())
	require.NoError(t, err)
	require.Zero(t, kicked, "it is not there yet")

	result := make(chan int, 1)

	go func() {
		kicked, err := kicker.Disconnect(context.Background(), principalOne())
		if err != nil {
			t.Error(err)
		}
		result <- kicked
	}()

	close(slow.leave)
	t.Cleanup(receive(t, admitted).Close)
	require.Equal(t, 1, receive(t, result))
	receive(t, gone)
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

	kicker := &natsauth.Disconnector{Conn: c.static(t, natsauth.PrincipalSystem), AdmissionTimeout: time.Nanosecond}
	kicked, err := kicker.Disconnect(testContext(t), principalOne())
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
	kicker := &natsauth.Disconnector{Conn: conn}

	_, err := kicker.DisconnectOnce(testContext(t), natsauth.Principal{})
	require.ErrorIs(t, err, natsauth.ErrInvalidPrincipal)

	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	_, err = kicker.Disconnect(ended, principalOne())
	require.ErrorIs(t, err, context.Canceled)

	conn.Close()
	_, err = kicker.Disconnect(testContext(t), principalOne())
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}
