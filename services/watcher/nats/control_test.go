package nats_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/nats"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

// directives are what was told, and the effect that requests wait for.
type directives struct {
	configs chan int
	nonces  chan string
	effect  chan struct{}
}

func newDirectives() *directives {
	return &directives{configs: make(chan int, 10), nonces: make(chan string, 10), effect: make(chan struct{})}
}

func (d *directives) Configure(_ context.Context, cfg events.AgentConfig) <-chan struct{} {
	d.configs <- cfg.ConfigRevision
	return nil
}

func (d *directives) Resync(_ context.Context, request events.ResyncRequested) <-chan struct{} {
	d.nonces <- request.Nonce
	return d.effect
}

// run reads until the function that it returns is called.
func run(t *testing.T, server *natsd.Server, to nats.Handler) (*nats.Control, func()) {
	t.Helper()
	control, err := nats.NewControl(natstest.Connect(t, server), agent, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		control.Run(ctx, to)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return control, stop
}

func tell(t *testing.T, js jetstream.JetStream, subject, kind string, data any) {
	t.Helper()
	e, err := event.New(event.Attributes{Type: kind, Source: event.ServiceSource("local", "state"), Subject: "7", ID: "1", Time: time.Now()}, data)
	require.NoError(t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(t, err)
	_, err = js.PublishMsg(t.Context(), msg)
	require.NoError(t, err)
}

func configure(t *testing.T, js jetstream.JetStream, revision int) {
	t.Helper()
	tell(t, js, cellName.ControlConfig(agent), events.TypeAgentConfig, events.AgentConfig{ConfigRevision: revision, FullResyncIntervalMs: 1000})
}

func request(t *testing.T, js jetstream.JetStream, nonce string) {
	t.Helper()
	tell(t, js, cellName.ControlResync(agent), events.TypeResyncRequested, events.ResyncRequested{Nonce: nonce, Cause: events.ResyncRequestCauseOperator})
}

func owed(t *testing.T, js jetstream.JetStream) int {
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
	first := newDirectives()
	control, stop := run(t, server, first)
	require.Equal(t, 2, receive(t, first.configs))
	receive(t, control.Read())
	require.Eventually(t, func() bool { return owed(t, js) == 0 }, patience, time.Millisecond)
	stop()
	require.Empty(t, first.configs)

	second := newDirectives()
	control, _ = run(t, server, second)
	require.Equal(t, 2, receive(t, second.configs), "acknowledged by another, and news to this one")
	receive(t, control.Read())
	configure(t, js, 3)
	require.Equal(t, 3, receive(t, second.configs))
}

func TestMessageIsAcknowledgedOnceItTookEffect(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	first := newDirectives()
	control, stop := run(t, server, first)
	receive(t, control.Read())
	request(t, js, "n")
	require.Equal(t, "n", receive(t, first.nonces))
	configure(t, js, 1)
	require.Equal(t, 1, receive(t, first.configs), "one that waits holds up none")
	require.Eventually(t, func() bool { return owed(t, js) == 1 }, patience, time.Millisecond)
	stop()
	require.Equal(t, 1, owed(t, js))

	second := newDirectives()
	run(t, server, second)
	require.Equal(t, "n", receive(t, second.nonces), "the one before ended too early")
	close(second.effect)
	require.Eventually(t, func() bool { return owed(t, js) == 0 }, patience, time.Millisecond)
}

func TestInvalidMessageIsDropped(t *testing.T) {
	t.Parallel()
	server, js := newStreams(t)
	to := newDirectives()
	control, _ := run(t, server, to)
	receive(t, control.Read())
	for _, bad := range []func(){
		func() { _, _ = js.Publish(t.Context(), cellName.ControlConfig(agent), []byte("no event")) },
		func() { configure(t, js, 0) },
		func() { request(t, js, "") },
		func() {
			tell(t, js, cellName.ControlResync(agent), "dev.lockstep.control.something_newer.v9", struct{}{})
		},
	} {
		bad()
		require.Eventually(t, func() bool { return owed(t, js) == 0 }, patience, time.Millisecond)
	}
	configure(t, js, 4)
	require.Equal(t, 4, receive(t, to.configs))
	require.Empty(t, to.nonces)
}

func TestReaderWaitsForTheConsumer(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	to := newDirectives()
	control, _ := run(t, server, to)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cellName, topology.Options{StorageBytes: 200 << 20}))
	require.NoError(t, topology.EnsureAgent(t.Context(), js, cellName, agent))
	receive(t, control.Read())
	require.NoError(t, server.Restart())
	configure(t, natstest.JetStream(t, server), 1)
	require.Equal(t, 1, receive(t, to.configs))
}
