package consumers_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	cell    = topology.Cell("local")
	timeout = time.Minute
)

func newStreams(t *testing.T) (*natsd.Server, jetstream.JetStream) {
	t.Helper()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	require.NoError(t, topology.Ensure(t.Context(), js, cell, topology.Options{StorageBytes: 100 << 20}))
	return server, js
}

// startResponder answers requests as the state service does.
func startResponder(t *testing.T, server *natsd.Server) {
	t.Helper()
	r := &consumers.Responder{
		Direct: consumers.Direct{JetStream: natstest.JetStream(t, server), Cell: cell, Service: "state"},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case <-ready:
	case <-time.After(timeout):
		require.Fail(t, "the responder is not ready")
	}
}

func requested(t *testing.T, server *natsd.Server) consumers.Requested {
	t.Helper()
	return consumers.Requested{JetStream: natstest.JetStream(t, server), Cell: cell, Service: "deploys"}
}

func publish(t *testing.T, js jetstream.JetStream, subjects ...string) {
	t.Helper()
	for _, subject := range subjects {
		_, err := js.Publish(t.Context(), subject, []byte("x"))
		require.NoError(t, err)
	}
}

func next(t *testing.T, c jetstream.Consumer) string {
	t.Helper()
	m, err := c.Next(jetstream.FetchMaxWait(timeout))
	require.NoError(t, err)
	return m.Subject()
}

func TestRequestedReaderReadsFromItsSequence(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	startResponder(t, server)
	publish(t, js, cell.ObservedTick(1), cell.ObservedTick(2), cell.ObservedTick(3))
	reader := topology.ReaderConsumer{Name: "workloads", Stream: topology.StreamObserved, StartSequence: 2}

	first, err := requested(t, server).Reader(t.Context(), reader)
	require.NoError(t, err)
	require.Equal(t, cell.ObservedTick(2), next(t, first))
	require.Equal(t, cell.ObservedTick(3), next(t, first))

	reader.StartSequence = 3
	second, err := requested(t, server).Reader(t.Context(), reader)
	require.NoError(t, err, "it replaces the first")
	require.Equal(t, cell.ObservedTick(3), next(t, second))
	require.Equal(t, []string{"deploys-workloads"}, consumerNames(t, js, topology.StreamObserved))
}

func TestRequestedSinkKeepsItsPosition(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	startResponder(t, server)
	facts := []string{
		cell.Deploy("c", "n", "deployment", "a", "started"), cell.Deploy("c", "n", "deployment", "b", "started"),
	}
	publish(t, js, facts...)
	sink := topology.SinkConsumer{Name: "chat", Stream: topology.StreamDeploys, AckWait: time.Minute, MaxPending: 7}

	consumer, err := requested(t, server).Sink(t.Context(), sink)
	require.NoError(t, err)
	m, err := consumer.Next(jetstream.FetchMaxWait(timeout))
	require.NoError(t, err)
	require.Equal(t, facts[0], m.Subject())
	require.NoError(t, m.DoubleAck(t.Context()))

	sink.MaxPending = 8
	consumer, err = requested(t, server).Sink(t.Context(), sink)
	require.NoError(t, err)
	require.Equal(t, 8, consumer.CachedInfo().Config.MaxAckPending)
	require.Equal(t, facts[1], next(t, consumer))
}

func TestRefusedRequestNamesTheReason(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	startResponder(t, server)

	_, err := requested(t, server).Reader(
		t.Context(), topology.ReaderConsumer{Name: "x", Stream: topology.StreamDesired, StartSequence: 1},
	)

	require.ErrorIs(t, err, consumers.ErrRefused)
	require.ErrorContains(t, err, `service "deploys" may not read stream "DESIRED"`)
	require.Empty(t, consumerNames(t, js, topology.StreamDesired))
}

func TestRequestWithoutStateServiceNamesIt(t *testing.T) {
	t.Parallel()
	server, _ := newStreams(t)

	_, err := requested(t, server).Reader(
		t.Context(), topology.ReaderConsumer{Name: "x", Stream: topology.StreamObserved, StartSequence: 1},
	)

	require.ErrorContains(t, err, "the service state, which creates it, does not run")
}

func consumerNames(t *testing.T, js jetstream.JetStream, name string) []string {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	var names []string
	list := stream.ConsumerNames(t.Context())
	for n := range list.Name() {
		names = append(names, n)
	}
	require.NoError(t, list.Err())
	return names
}
