package nats_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	// brief is the lease of relays that are to be found dead. All others have a long one: a busy machine must not kill them.
	brief = 2 * time.Second
)

// relay is one that runs: its book, what it knows, and how it ends.
type relay struct {
	*nats.RegistryStore

	known *registry.Registry
	js    jetstream.JetStream
	lost  chan int64
	// end ends it in order; kill cuts it off from NATS.
	end, kill func()
}

func start(t *testing.T, server *natsd.Server, id string) *relay {
	t.Helper()
	return startFor(t, server, id, patience)
}

// startFor starts one with a lease.
func startFor(t *testing.T, server *natsd.Server, id string, lease time.Duration) *relay {
	t.Helper()
	r := &relay{known: registry.New(), js: natstest.JetStream(t, server), lost: make(chan int64, 10)}
	require.NoError(t, topology.EnsureRelays(natstest.Context(t), r.js, topology.Options{}))
	r.RegistryStore = nats.NewRegistryStore(nats.RegistryConfig{
		JetStream: r.js, Self: registry.Relay{ID: id, URL: "https://" + id}, Registry: r.known, Lease: lease, Events: heard{lost: r.lost}, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = r.Run(ctx, func() { ready <- struct{}{} })
		}
	}()
	stop := func() {
		cancel()
		<-ended
	}
	r.end = stop
	r.kill = func() {
		r.js.Conn().Close()
		stop()
	}
	t.Cleanup(stop)
	<-ready
	return r
}

// heard is told who comes and goes, and says who is lost.
type heard struct {
	lost chan<- int64
}

func (heard) Connected(registry.Connection) {}

func (heard) Disconnected(registry.Connection, time.Time, events.DisconnectReason) {}

func (heard) Republish(registry.Connection) bool { return true }

func (h heard) Lost(_ context.Context, lost []registry.Connection) error {
	for _, c := range lost {
		h.lost <- c.ID
	}
	return nil
}

func (r *relay) sees(t *testing.T, agent int64, want ...int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		got := []int64{}
		for _, c := range r.known.Agent(agent) {
			got = append(got, c.ID)
		}
		return len(got) == len(want) && (len(got) == 0 || got[0] == want[0])
	}, patience, 10*time.Millisecond, "connections %v of agent %d", want, agent)
}

func connection(agent, id int64) registry.Connection {
	return registry.Connection{AgentID: agent, ID: id, ProjectID: 3, ConnectedAt: time.Now().UTC().Truncate(time.Millisecond)}
}

func TestEveryRelayKnowsWhatEachHolds(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	a.sees(t, 7, 1)
	b.sees(t, 7, 1)
	found, known := b.known.Relay("a")
	require.True(t, known)
	require.Equal(t, "https://a", found.URL)
	late := start(t, server, "c")
	late.sees(t, 7, 1)
	a.Disconnected(connection(7, 1), time.Now(), "")
	b.sees(t, 7)
	late.sees(t, 7)
}

func TestWhatAKilledRelayHeldIsGoneWithItsLease(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := startFor(t, server, "a", brief), startFor(t, server, "b", brief)
	a.Connected(connection(7, 1))
	b.sees(t, 7, 1)
	a.kill()
	b.sees(t, 7)
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		keys, err := kv.Keys(t.Context())
		return err == nil && !slices.Contains(keys, "relay.a") && !slices.Contains(keys, connection(7, 1).Key())
	}, patience, 10*time.Millisecond, "and somebody cleans up")
}

func TestWhatARelayHeldThatEndsInOrderIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.sees(t, 7, 1)
	a.end()
	b.sees(t, 7)
	require.Eventually(t, func() bool { return len(b.known.Orphans()) == 0 }, patience, time.Millisecond)
}

// A relay that is being drained is not found by others, and finds them still.
func TestARetiredRelayStillFollowsTheOthers(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.sees(t, 7, 1)
	require.NoError(t, a.Retire(t.Context()))
	b.sees(t, 7)
	_, known := b.known.Relay("a")
	require.False(t, known)
	b.Connected(connection(7, 2))
	a.sees(t, 7, 2)
}

// NATS forgets what it had in memory, and so does not say that a relay is gone which was killed meanwhile.
func TestARelayThatIsKilledWhileNATSIsAwayIsLost(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := startFor(t, server, "a", brief), startFor(t, server, "b", brief)
	a.Connected(connection(7, 1))
	b.Connected(connection(8, 2))
	b.sees(t, 7, 1)
	server.Down()
	a.kill()
	require.NoError(t, server.Restart())
	require.NoError(t, topology.EnsureRelays(natstest.Context(t), natstest.JetStream(t, server), topology.Options{}))
	require.EqualValues(t, 1, <-b.lost)
	b.sees(t, 7)
	b.sees(t, 8, 2)
	require.Empty(t, b.lost)
}

// A relay that was taken for dead, and is not, is found again with all that it holds.
func TestWhatOthersRemovedThatIsStillHeldComesBack(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.sees(t, 7, 1)
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	first, err := kv.Get(t.Context(), connection(7, 1).Key())
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), "relay.a"))
	require.NoError(t, kv.Purge(t.Context(), connection(7, 1).Key()))
	require.Eventually(t, func() bool {
		again, err := kv.Get(t.Context(), connection(7, 1).Key())
		return err == nil && again.Revision() > first.Revision()
	}, patience, 10*time.Millisecond)
	b.sees(t, 7, 1)
	a.Disconnected(connection(7, 1), time.Now(), "")
	b.sees(t, 7)
}

func TestALeaseOutlivesItsLength(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second // two thirds of it is what a busy machine may make of one
	server := natstest.Server(t)
	a, b := startFor(t, server, "a", lease), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.sees(t, 7, 1)
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	first, err := kv.Get(t.Context(), "relay.a")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		entry, err := kv.Get(t.Context(), "relay.a")
		require.NoError(t, err, "it is refreshed before it expires")
		require.Len(t, b.known.Agent(7), 1)
		return entry.Created().Sub(first.Created()) > lease
	}, patience, 20*time.Millisecond)
}

// The bucket is in memory: NATS loses it when it starts again. What was known counts meanwhile, and all is there again after it.
func TestABucketThatIsLostIsFilledAgain(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	a.Connected(connection(8, 2))
	b.sees(t, 7, 1)
	b.sees(t, 8, 2)
	server.Down()
	a.Disconnected(connection(8, 2), time.Now(), "")
	a.Connected(connection(9, 3))
	require.Len(t, b.known.Agent(7), 1, "it goes on to count")
	require.NoError(t, server.Restart())
	require.NoError(t, topology.EnsureRelays(natstest.Context(t), natstest.JetStream(t, server), topology.Options{}))
	b.sees(t, 9, 3)
	b.sees(t, 8)
	b.sees(t, 7, 1)
	late := start(t, server, "c")
	late.sees(t, 7, 1)
	late.sees(t, 9, 3)
}
