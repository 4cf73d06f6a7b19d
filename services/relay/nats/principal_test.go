package nats_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	relaynats "lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const cell = topology.Cell("local")

// system is a NATS as `lockstep nats init` configures it, with the streams that the state service makes.
type system struct {
	dir    string
	server *natsd.Server
	state  jetstream.JetStream
	reader jetstream.JetStream // see operator
}

func startSystem(t *testing.T) *system {
	t.Helper()
	s := &system{dir: t.TempDir()}
	report, err := natsauth.Init(s.dir, natsauth.Options{Cell: cell, StoreDir: t.TempDir()})
	require.NoError(t, err)
	s.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile})
	s.state = s.as(t, natsauth.PrincipalState)
	require.NoError(t, topology.Ensure(natstest.Context(t), s.state, cell, topology.Options{StorageBytes: 100 << 20}))
	return s
}

// as connects as a principal whose every refused request fails the test.
func (s *system) as(t *testing.T, name string) jetstream.JetStream {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(s.dir, name))
	require.NoError(t, err)
	return natstest.JetStream(t, s.server, seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(name)), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		t.Errorf("%s: %v", name, err)
	}))
}

// run keeps a book until the test ends, or its end is called, and returns once it knows all that there is.
func (s *system) run(t *testing.T, id string) *relay {
	t.Helper()
	r := &relay{known: registry.New(), js: s.as(t, natsauth.PrincipalRelay)}
	r.RegistryStore = relaynats.NewRegistryStore(relaynats.RegistryConfig{
		JetStream: r.js, Self: registry.Relay{ID: id, URL: "https://" + id}, Registry: r.known, Lease: patience, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- r.Run(ctx, func() { ready <- struct{}{} }) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(r.end)
	select {
	case <-ready:
	case <-time.After(patience):
		require.Fail(t, "the book is not read", "within %s", patience)
	}
	return r
}

func TestTheRelaysPrincipalKeepsABook(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	a, b := s.run(t, "a"), s.run(t, "b")
	a.Connected(connection(7, 1))
	a.Connected(connection(8, 2))
	b.sees(t, 7, 1)
	b.sees(t, 8, 2)
	a.Disconnected(connection(7, 1), time.Now(), "")
	b.sees(t, 7)
	a.end()
	b.sees(t, 8)
	require.Eventually(t, func() bool { return len(b.known.Orphans()) == 0 }, patience, 10*time.Millisecond, "an orderly end takes everything back")
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	_, err = kv.Get(t.Context(), "relay.b")
	require.NoError(t, err)
}

// What is read of the bucket at first comes as fast as the relay takes it, which it says when it is asked.
func TestTheRelaysPrincipalReadsALargeBook(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	s.run(t, "a")
	js := s.as(t, natsauth.PrincipalRelay)
	const connections = 2000
	padding := strings.Repeat("x", 3000)
	for i := range connections {
		_, err := js.PublishAsync(fmt.Sprintf("$KV.RELAYS.connection.7.%d", i+1), fmt.Appendf(nil, `{"relay_id":"a","project_id":3,"pod_name":%q}`, padding))
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(patience):
		require.Fail(t, "not everything was written")
	}
	late := s.run(t, "late")
	require.Len(t, late.known.Agent(7), connections)
}

func TestTheRelaysPrincipalReadsWhatItDecidesByAndTellsOfAgents(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	js := s.as(t, natsauth.PrincipalRelay)
	for subject, data := range map[string]string{cell.Directory("agent", "7"): `{"agent_id":7,"project_id":3}`, cell.ControlConfig(7): `{"config_revision":1}`} {
		_, err := s.state.Publish(t.Context(), subject, []byte(data))
		require.NoError(t, err)
	}
	d, err := directory.New(directory.Config{Conn: js.Conn(), Cell: cell, Logger: slog.New(slog.DiscardHandler), Probe: 10 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case <-time.After(patience):
		require.Fail(t, "the directory is not read")
	}
	agent, found := d.Agent(7)
	require.True(t, found)
	require.Equal(t, int64(3), agent.ProjectID)

	consumer, err := js.OrderedConsumer(t.Context(), topology.StreamControl, jetstream.OrderedConsumerConfig{FilterSubjects: []string{cell.ControlConfigs()}})
	require.NoError(t, err)
	message, err := consumer.Next(jetstream.FetchMaxWait(patience))
	require.NoError(t, err)
	require.Equal(t, cell.ControlConfig(7), message.Subject())

	for _, subject := range []string{cell.AgentConnected(7), cell.AgentDisconnected(7), cell.AgentRequests(7)} {
		ack, err := js.Publish(t.Context(), subject, nil)
		require.NoError(t, err)
		require.Equal(t, topology.StreamAgents, ack.Stream)
	}
	cancel()
	require.NoError(t, <-ended)
}
