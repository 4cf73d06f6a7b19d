package agentcontrol_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/agentcontrol"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cellName = topology.Cell("local")
	agent    = int64(7)
	timeout  = time.Minute
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newStreams starts a server with the streams and one agent's consumers.
func newStreams(t *testing.T) (*natsd.Server, jetstream.JetStream) {
	t.Helper()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cellName, topology.Options{StorageBytes: 200 << 20}))
	require.NoError(t, topology.EnsureAgent(t.Context(), js, cellName, agent))
	return server, js
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		require.Fail(t, "nothing was received")
		panic("unreachable")
	}
}

// handler records the received messages. Resync requests take effect when effect is closed.
type handler struct {
	configs chan int
	nonces  chan string
	effect  chan struct{}
}

func newHandler() *handler {
	return &handler{configs: make(chan int, 10), nonces: make(chan string, 10), effect: make(chan struct{})}
}

func (d *handler) Configure(_ context.Context, cfg events.AgentConfig) <-chan struct{} {
	d.configs <- cfg.ConfigRevision
	return nil
}

func (d *handler) Resync(_ context.Context, request events.ResyncRequested) <-chan struct{} {
	d.nonces <- request.Nonce
	return d.effect
}

// run runs a reader until the returned function is called.
func run(t *testing.T, server *natsd.Server, to agentcontrol.Handler) (*agentcontrol.Reader, func()) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	control := agentcontrol.NewReader(natstest.Connect(t, server), topology.WatcherConsumer(agent), logger)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.NoError(t, control.Run(ctx, to))
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return control, stop
}

func publish(t *testing.T, js jetstream.JetStream, subject, kind string, data any) {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type:    kind,
		Source:  event.ServiceSource("local", "state"),
		Subject: "7",
		ID:      "1",
		Time:    time.Now(),
	}, data)
	require.NoError(t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(t, err)
	_, err = js.PublishMsg(t.Context(), msg)
	require.NoError(t, err)
}

func configure(t *testing.T, js jetstream.JetStream, revision int) {
	t.Helper()
	publish(t, js, cellName.ControlConfig(agent), events.TypeAgentConfig, events.AgentConfig{
		ConfigRevision:       revision,
		FullResyncIntervalMs: 1000,
	})
}

func request(t *testing.T, js jetstream.JetStream, nonce string) {
	t.Helper()
	publish(t, js, cellName.ControlResync(agent), events.TypeResyncRequested, events.ResyncRequested{
		Nonce: nonce,
		Cause: events.ResyncRequestCauseOperator,
	})
}

func unacknowledged(t *testing.T, js jetstream.JetStream) int {
	t.Helper()
	consumer, err := js.Consumer(t.Context(), topology.StreamControl, topology.WatcherConsumer(agent))
	require.NoError(t, err)
	return consumer.CachedInfo().NumAckPending + int(consumer.CachedInfo().NumPending)
}

func TestEachReaderReceivesTheLastMessages(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	configure(t, js, 1)
	configure(t, js, 2)
	first := newHandler()
	control, stop := run(t, server, first)
	require.Equal(t, 2, receive(t, first.configs))
	receive(t, control.CaughtUp())
	require.Eventually(t, func() bool { return unacknowledged(t, js) == 0 }, timeout, time.Millisecond)
	stop()
	require.Empty(t, first.configs)

	second := newHandler()
	control, _ = run(t, server, second)
	require.Equal(t, 2, receive(t, second.configs), "another reader has acknowledged it")
	receive(t, control.CaughtUp())
	configure(t, js, 3)
	require.Equal(t, 3, receive(t, second.configs))
}

func TestMessageIsAcknowledgedAfterItsEffect(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	first := newHandler()
	control, stop := run(t, server, first)
	receive(t, control.CaughtUp())
	request(t, js, "n")
	require.Equal(t, "n", receive(t, first.nonces))
	configure(t, js, 1)
	require.Equal(t, 1, receive(t, first.configs), "a waiting message blocks no other")
	require.Eventually(t, func() bool { return unacknowledged(t, js) == 1 }, timeout, time.Millisecond)
	stop()
	require.Equal(t, 1, unacknowledged(t, js))

	second := newHandler()
	run(t, server, second)
	require.Equal(t, "n", receive(t, second.nonces), "the previous reader ended before the effect")
	close(second.effect)
	require.Eventually(t, func() bool { return unacknowledged(t, js) == 0 }, timeout, time.Millisecond)
}

func TestInvalidMessageIsDropped(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	to := newHandler()
	control, _ := run(t, server, to)
	receive(t, control.CaughtUp())
	for _, bad := range []func(){
		func() { _, _ = js.Publish(t.Context(), cellName.ControlConfig(agent), []byte("no event")) },
		func() { configure(t, js, 0) },
		func() { request(t, js, "") },
		func() {
			publish(t, js, cellName.ControlResync(agent), "dev.lockstep.control.something_newer.v9", struct{}{})
		},
	} {
		bad()
		require.Eventually(t, func() bool { return unacknowledged(t, js) == 0 }, timeout, time.Millisecond)
	}
	configure(t, js, 4)
	require.Equal(t, 4, receive(t, to.configs))
	require.Empty(t, to.nonces)
}

func TestReportOfProcessedObservationsIsReceived(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	logger := slog.New(slog.DiscardHandler)
	control := agentcontrol.NewReader(natstest.Connect(t, server), topology.WatcherConsumer(agent), logger)
	sequences := make(chan uint64, 10)
	control.OnObservationsRead = func(sequence uint64) { sequences <- sequence }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.NoError(t, control.Run(ctx, newHandler()))
	}()
	defer func() { cancel(); <-done }()
	publish(t, js, cellName.ControlRead(agent), events.TypeObservationsRead, events.ObservationsRead{Sequence: 42})
	require.EqualValues(t, 42, receive(t, sequences))
	require.Eventually(t, func() bool { return unacknowledged(t, js) == 0 }, timeout, time.Millisecond)
}

func TestReaderWaitsForTheConsumer(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	to := newHandler()
	control, _ := run(t, server, to)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cellName, topology.Options{StorageBytes: 200 << 20}))
	require.NoError(t, topology.EnsureAgent(t.Context(), js, cellName, agent))
	receive(t, control.CaughtUp())
	require.NoError(t, server.Restart())
	configure(t, natstest.JetStream(t, server), 1)
	require.Equal(t, 1, receive(t, to.configs))
}
