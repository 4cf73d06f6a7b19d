package nats_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	relaynats "lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const cell = topology.Cell("local")

// system is a NATS as `lockstep nats init` configures it, with the streams that the state service makes.
type system struct {
	dir    string
	server *natsd.Server
	state  jetstream.JetStream
	reader jetstream.JetStream // see administrator
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{dir: t.TempDir()}
	report, err := natsauth.Init(s.dir, natsauth.Options{
		Cell: cell, StoreDir: t.TempDir(), Principals: []natsauth.StaticPrincipal{natsadmin.Principal()},
	})
	require.NoError(t, err)
	s.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile})
	s.state = s.as(t, natsauth.PrincipalState)
	require.NoError(t, topology.Ensure(natstest.Context(t), s.state, cell, topology.Options{StorageBytes: 100 << 20}))
	return s
}

// as connects as a principal. A request that NATS refuses fails the test.
func (s *system) as(t *testing.T, name string) jetstream.JetStream {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(s.dir, name))
	require.NoError(t, err)
	inbox := nats.CustomInboxPrefix(natsauth.InboxPrefix(name))
	failOnError := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		t.Errorf("%s: %v", name, err)
	})
	return natstest.JetStream(t, s.server, seed, inbox, failOnError)
}

// control returns the streams of the control plane, as a relay reaches them.
func (s *system) control(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.NewWithAPIPrefix(s.as(t, natsauth.PrincipalRelay).Conn(), natsauth.ControlAPIPrefix)
	require.NoError(t, err)
	return js
}

// run starts a RegistryStore and returns after it has read the bucket.
func (s *system) run(t *testing.T, id string) *relay {
	t.Helper()
	r := &relay{registry: registry.New(), js: s.as(t, natsauth.PrincipalRelay)}
	r.RegistryStore = relaynats.NewRegistryStore(relaynats.RegistryConfig{
		JetStream: r.js, Self: registry.Relay{ID: id, URL: "https://" + id}, Registry: r.registry, Lease: timeout,
		Events:    relaynats.NewEventPublisher(r.js, cell, id, slog.New(slog.DiscardHandler)),
		OnRemoved: func(registry.Connection) {}, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- r.Run(ctx, func() { ready <- struct{}{} }) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(r.stop)
	select {
	case <-ready:
	case <-time.After(timeout):
		require.Fail(t, "the registry was not read", "within %s", timeout)
	}
	return r
}

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	timeout = time.Minute
	// shortLease is for tests that let a lease expire.
	shortLease = 2 * time.Second
)

// relay is a running RegistryStore with its registry.
type relay struct {
	*relaynats.RegistryStore

	registry *registry.Registry
	js       jetstream.JetStream
	// lost receives the ids of connections that were published as lost.
	lost chan int64
	// stop stops the relay gracefully. kill disconnects it from NATS first.
	stop, kill func()
}

func start(t *testing.T, server *natsd.Server, id string) *relay {
	t.Helper()
	return startWithLease(t, server, id, timeout)
}

// startWithLease starts a relay with this lease.
func startWithLease(t *testing.T, server *natsd.Server, id string, lease time.Duration) *relay {
	t.Helper()
	r := &relay{registry: registry.New(), js: natstest.JetStream(t, server), lost: make(chan int64, 10)}
	r.RegistryStore = relaynats.NewRegistryStore(relaynats.RegistryConfig{
		JetStream: r.js, Self: registry.Relay{ID: id, URL: "https://" + id}, Registry: r.registry, Lease: lease,
		Events: lostEvents{lost: r.lost}, OnRemoved: func(registry.Connection) {}, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = r.Run(ctx, func() { ready <- struct{}{} })
		}
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
	r.kill = func() {
		r.js.Conn().Close()
		r.stop()
	}
	t.Cleanup(r.stop)
	<-ready
	return r
}

// lostEvents records the connections that are published as lost.
type lostEvents struct {
	lost chan<- int64
}

func (e lostEvents) PublishLost(_ context.Context, lost []registry.Connection) error {
	for _, c := range lost {
		e.lost <- c.ID
	}
	return nil
}

// requireConnections waits until the registry has these connections of an agent.
func (r *relay) requireConnections(t *testing.T, agent int64, want ...int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		got := []int64{}
		for _, c := range r.registry.Agent(agent) {
			got = append(got, c.ID)
		}
		return len(got) == len(want) && (len(got) == 0 || got[0] == want[0])
	}, timeout, 10*time.Millisecond, "connections %v of agent %d", want, agent)
}

func connection(agent, id int64) registry.Connection {
	return registry.Connection{
		AgentID: agent, ID: id, ProjectID: 3, ConnectedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
}

func (lostEvents) Connected(registry.Connection) {}

func (lostEvents) Disconnected(registry.Connection, time.Time, events.DisconnectReason) {}

func (lostEvents) Republish(registry.Connection) bool { return true }
