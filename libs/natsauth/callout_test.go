package natsauth_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

// syncBuffer takes a log from several goroutines.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.buffer.String()
}

func logTo(b *syncBuffer) func(*natsauth.Responder) {
	return func(r *natsauth.Responder) { r.Logger = slog.New(slog.NewTextHandler(b, nil)) }
}

func TestWrongCredentialsAreRefused(t *testing.T) {
	t.Parallel()

	var log syncBuffer

	c := startCell(t, logTo(&log))
	state, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(initDir(t, natsauth.Options{}), natsauth.PrincipalState))
	require.NoError(t, err)

	for name, options := range map[string][]nats.Option{
		"wrong token":            {nats.UserInfo("17", "wrong-token-of-17")},
		"another's token":        {nats.UserInfo("17", "token-two")},
		"no token":               {nats.UserInfo("17", "")},
		"unknown agent":          {nats.UserInfo("19", "token-one")},
		"nobody":                 nil,
		"bearer":                 {nats.Token("token-one")},
		"a name of ours":         {nats.UserInfo(natsauth.PrincipalState, "x")},
		"nkey of another server": {state},
		"oversized password":     {nats.UserInfo("17", strings.Repeat("x", 3<<10))},
	} {
		_, err := nats.Connect(c.server.ClientURL(), append(options, nats.Timeout(timeout))...)
		require.ErrorIs(t, err, nats.ErrAuthorization, name)
	}

	require.Contains(t, log.String(), "client refused")
	require.Contains(t, log.String(), "user=17")
	require.NotContains(t, log.String(), "wrong-token-of-17")
	require.NotContains(t, log.String(), "token-two")
}

func TestFailingAuthenticatorRefusesAndLogs(t *testing.T) {
	t.Parallel()

	var log syncBuffer

	c := startCell(t, logTo(&log))
	c.directory.fail(errBroken)

	_, err := nats.Connect(c.server.ClientURL(), nats.UserInfo("17", "token-one"), nats.Timeout(timeout))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.Contains(t, log.String(), "could not be checked")
	require.Contains(t, log.String(), errBroken.Error())

	c.directory.fail(nil)
	c.agent(t, agentOne)
}

func TestRepeatedRefusalsAreLimited(t *testing.T) {
	t.Parallel()

	c := startCell(t)

	const tries = 40
	for range tries {
		_, err := nats.Connect(c.server.ClientURL(), nats.UserInfo("17", "wrong"), nats.Timeout(timeout))
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}

	require.Less(t, c.directory.timesAsked(), tries)
	// Other agents of the same host are not limited.
	c.agent(t, agentTwo)
}

func TestResponderRestart(t *testing.T) {
	t.Parallel()

	c := &cell{dir: initDir(t, natsauth.Options{}), directory: newDirectory()}
	c.server = startServer(t, c.dir)
	stop := c.startResponder(t)
	c.state = c.static(t, natsauth.PrincipalState)

	var err error
	c.js, err = jetstream.New(c.state)
	require.NoError(t, err)
	createStreams(t, c.js)

	one := c.agent(t, agentOne)
	stop()

	// Connected clients stay connected.
	_, err = one.jetStream(t).Publish(testContext(t), "lockstep.local.observed.17.resync", nil)
	require.NoError(t, err)

	// A new client waits until a responder runs.
	connected, refused := make(chan struct{}, 1), make(chan struct{}, 100)
	two, err := nats.Connect(c.server.ClientURL(), nats.UserInfo("18", "token-two"),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(timeout),
		nats.ReconnectErrHandler(func(*nats.Conn, error) { refused <- struct{}{} }),
		nats.ConnectHandler(func(*nats.Conn) { connected <- struct{}{} }))
	require.NoError(t, err)
	t.Cleanup(two.Close)
	require.False(t, two.IsConnected())

	c.startResponder(t)
	receive(t, connected)
	require.True(t, one.IsConnected())
}

func TestRespondersShareRequests(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	stop := c.startResponder(t)

	for range 5 {
		c.agent(t, agentOne).Close()
	}

	require.Equal(t, 5, c.directory.timesAsked(), "each request goes to one responder")
	stop()

	for range 5 {
		c.agent(t, agentOne).Close()
	}
}

// TestExpiryLosesNothing sets a lifetime of one second while an agent publishes and consumes.
func TestExpiryLosesNothing(t *testing.T) {
	t.Parallel()

	c := startCell(t, func(r *natsauth.Responder) { r.Lifetime = time.Second })
	reconnected := make(chan struct{}, 100)
	agent := c.agent(t, agentOne, nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} }))
	js := agent.jetStream(t)

	// Messages in flight when the connection ends are redelivered after AckWait, which is short here.
	short := topology.AgentConsumers(cellName, agentOne)[0].Config
	short.AckWait = time.Second
	_, err := c.js.UpdateConsumer(testContext(t), "DESIRED", short)
	require.NoError(t, err)

	in := startPullReader(t, agent.Conn, "DESIRED", "dispatcher-17", 0)
	sent := 0

	for expiries := 0; expiries < 3; {
		select {
		case <-reconnected:
			expiries++
		default:
		}

		subject := "lockstep.local.desired.17." + strconv.Itoa(sent)
		_, err := c.js.Publish(testContext(t), subject, []byte("x"))
		require.NoError(t, err)

		sent++
		message := receive(t, in.received)

		for message.Subject() != subject {
			message = receive(t, in.received) // Once more, because its acknowledgement was cut off.
		}

		// What the expiry cuts off is tried again, as every publisher must.
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()

			err := message.DoubleAck(ctx)
			if err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				return false
			}

			_, err = js.Publish(ctx, "lockstep.local.observed.17.resync", nil)

			return err == nil
		}, timeout, time.Millisecond)
	}

	in.stop()

	stream, err := c.js.Stream(testContext(t), "OBSERVED")
	require.NoError(t, err)
	require.GreaterOrEqual(t, stream.CachedInfo().State.Msgs, uint64(sent))
	require.Eventually(
		t, func() bool { return consumerPending(t, c, "DESIRED", "dispatcher-17") == 0 }, timeout, 10*time.Millisecond,
	)

	for {
		select {
		case err := <-agent.complaints:
			// A responder that is too late for a reconnect refuses it.
			require.True(t, errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthorization), "%v", err)
		default:
			return
		}
	}
}

func consumerPending(t *testing.T, c *cell, stream, name string) int {
	t.Helper()

	consumer, err := c.js.Consumer(testContext(t), stream, name)
	require.NoError(t, err)

	return consumer.CachedInfo().NumAckPending + int(consumer.CachedInfo().NumPending)
}

func TestResponderFaults(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	keys, err := natsauth.LoadCalloutKeys(c.dir)
	require.NoError(t, err)

	whole := func() *natsauth.Responder {
		return &natsauth.Responder{
			Conn: c.state, Keys: keys, Cell: cellName, Authenticator: c.directory, Logger: slog.New(slog.DiscardHandler),
		}
	}

	for want, spoil := range map[string]func(*natsauth.Responder){
		"no connection":    func(r *natsauth.Responder) { r.Conn = nil },
		"no keys":          func(r *natsauth.Responder) { r.Keys = natsauth.CalloutKeys{} },
		"no authenticator": func(r *natsauth.Responder) { r.Authenticator = nil },
		"no logger":        func(r *natsauth.Responder) { r.Logger = nil },
		"cell":             func(r *natsauth.Responder) { r.Cell = "" },
		"lifetime":         func(r *natsauth.Responder) { r.Lifetime = time.Millisecond },
		"concurrent":       func(r *natsauth.Responder) { r.Concurrent = -1 },
	} {
		r := whole()
		spoil(r)
		err := r.Run(testContext(t))
		require.ErrorIs(t, err, natsauth.ErrInvalidResponder, want)
		require.ErrorContains(t, err, want)
	}

	r := whole()
	r.Conn = c.static(t, natsauth.PrincipalCallout)
	r.Conn.Close()
	require.ErrorIs(t, r.Run(testContext(t)), nats.ErrConnectionClosed)
}
