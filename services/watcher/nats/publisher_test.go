package nats_test

import (
	"context"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher/nats"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cellName = topology.Cell("local")
	agent    = int64(7)
	timeout  = time.Minute
)

// newStreams starts a server with the streams and one agent's consumers.
func newStreams(t *testing.T) (*natsd.Server, jetstream.JetStream) {
	t.Helper()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cellName, topology.Options{StorageBytes: 200 << 20}))
	require.NoError(t, topology.EnsureAgent(t.Context(), js, cellName, agent))
	return server, js
}

func newPublisher(t *testing.T, server *natsd.Server, ackTimeout time.Duration) (*nats.Publisher, *natsgo.Conn) {
	t.Helper()
	// Like the service: no reconnect buffer.
	conn := natstest.Connect(t, server, natsgo.ReconnectBufSize(-1))
	p, err := nats.NewPublisher(conn, ackTimeout)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p, conn
}

func message(data string) *natsgo.Msg {
	return &natsgo.Msg{Subject: cellName.ObservedTick(agent), Data: []byte(data), Header: natsgo.Header{"a": {"b"}}}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		require.Fail(t, "timed out waiting for a value")
		panic("unreachable")
	}
}

func stored(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	stream, err := js.Stream(t.Context(), topology.StreamObserved)
	require.NoError(t, err)
	return stream.CachedInfo().State.Msgs
}

func TestAcknowledgedMessageIsStored(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	p, _ := newPublisher(t, server, timeout)
	require.NoError(t, p.PublishSync(t.Context(), message("x")))
	require.EqualValues(t, 1, stored(t, js))
	settled := make(chan error, 100)
	for range 100 {
		p.Publish(message("y"), func(_ uint64, err error) { settled <- err })
	}
	for range 100 {
		require.NoError(t, receive(t, settled))
	}
	require.EqualValues(t, 101, stored(t, js))
}

func TestMissingAcknowledgementFailsTheMessage(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	p, conn := newPublisher(t, server, 100*time.Millisecond)
	// A subscriber that does not answer.
	_, err := conn.Subscribe(cellName.ObservedTick(agent), func(*natsgo.Msg) {})
	require.NoError(t, err)
	require.ErrorIs(t, p.PublishSync(t.Context(), message("x")), jetstream.ErrAsyncPublishTimeout)
}

func TestCanceledMessageIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server, _ := newStreams(t)
	p, conn := newPublisher(t, server, timeout)
	require.NoError(t, p.PublishSync(t.Context(), message("x")))
	_, err := conn.Subscribe("unanswered", func(*natsgo.Msg) {})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.PublishSync(ctx, &natsgo.Msg{Subject: "unanswered"}), context.Canceled)
}

func TestLostConnectionFailsMessagesInFlight(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	p, conn := newPublisher(t, server, timeout)
	_, err := conn.Subscribe(cellName.ObservedTick(agent), func(*natsgo.Msg) {})
	require.NoError(t, err)
	settled := make(chan error, 1)
	p.Publish(message("x"), func(_ uint64, err error) { settled <- err })
	require.NoError(t, conn.Flush())
	server.Down()
	require.Error(t, receive(t, settled))
	require.Eventually(t, func() bool { return !p.IsConnected() }, timeout, time.Millisecond)
	require.Error(t, p.PublishSync(t.Context(), message("x")), "nothing is kept for later")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.WaitForConnection(ctx), context.Canceled)
	connected := make(chan error, 1)
	go func() { connected <- p.WaitForConnection(t.Context()) }()
	require.NoError(t, server.Restart())
	require.NoError(t, receive(t, connected))
}

func TestMessageAboveTheLimitIsTooLarge(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	p, conn := newPublisher(t, server, timeout)
	require.Equal(t, topology.MaxMessageSize, p.Limit())
	require.ErrorIs(t, p.PublishSync(t.Context(), message(string(make([]byte, conn.MaxPayload())))), nats.ErrTooLarge)

	stream, err := js.Stream(t.Context(), topology.StreamObserved)
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = 1000
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	fits := message("")
	fits.Data = make([]byte, 1000-nats.Size(fits))
	require.Equal(t, 1000, nats.Size(fits))
	require.NoError(t, p.PublishSync(t.Context(), fits), "the size is counted as the server does")
	fits.Data = append(fits.Data, 'x')
	require.ErrorIs(t, p.PublishSync(t.Context(), fits), nats.ErrTooLarge)
}

func TestCloseFailsMessagesInFlight(t *testing.T) {
	t.Parallel()
	server, _ := newStreams(t)
	p, conn := newPublisher(t, server, timeout)
	require.NoError(t, p.PublishSync(t.Context(), message("x")))
	_, err := conn.Subscribe("unanswered", func(*natsgo.Msg) {})
	require.NoError(t, err)
	settled := make(chan error, 1)
	p.Publish(&natsgo.Msg{Subject: "unanswered"}, func(_ uint64, err error) { settled <- err })
	p.Close()
	require.ErrorIs(t, receive(t, settled), jetstream.ErrJetStreamPublisherClosed)
}
