package nats_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	relaynats "lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/natstest"
)

func TestConnectionsAreReplicatedToAllRelays(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	a.requireConnections(t, 7, 1)
	b.requireConnections(t, 7, 1)
	found, hasLease := b.registry.Relay("a")
	require.True(t, hasLease)
	require.Equal(t, "https://a", found.URL)
	late := start(t, server, "c")
	late.requireConnections(t, 7, 1)
	a.Disconnected(connection(7, 1), time.Now(), "")
	b.requireConnections(t, 7)
	late.requireConnections(t, 7)
}

func TestKilledRelaysConnectionsExpireWithLease(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := startWithLease(t, server, "a", shortLease), startWithLease(t, server, "b", shortLease)
	a.Connected(connection(7, 1))
	b.requireConnections(t, 7, 1)
	a.kill()
	b.requireConnections(t, 7)
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		keys, err := kv.Keys(t.Context())
		return err == nil && !slices.Contains(keys, "relay.a") && !slices.Contains(keys, connection(7, 1).Key())
	}, timeout, 10*time.Millisecond, "another relay removes the entries")
}

func TestStoppedRelaysConnectionsAreRemovedAtOnce(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.requireConnections(t, 7, 1)
	a.stop()
	b.requireConnections(t, 7)
	require.Eventually(t, func() bool { return len(b.registry.Orphans()) == 0 }, timeout, time.Millisecond)
}

// A draining relay is not in the registry, but still reads it.
func TestRetiredRelayStillReadsRegistry(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.requireConnections(t, 7, 1)
	require.NoError(t, a.Unregister(t.Context()))
	b.requireConnections(t, 7)
	_, hasLease := b.registry.Relay("a")
	require.False(t, hasLease)
	b.Connected(connection(7, 2))
	a.requireConnections(t, 7, 2)
}

// NATS loses the in-memory bucket, so no expiry event reports a relay that was killed during the outage.
func TestRelayKilledDuringNATSOutageIsReportedLost(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), startWithLease(t, server, "b", shortLease)
	a.Connected(connection(7, 1))
	b.Connected(connection(8, 2))
	b.requireConnections(t, 7, 1)
	server.Down()
	a.kill()
	require.NoError(t, server.Restart())
	require.EqualValues(t, 1, <-b.lost)
	b.requireConnections(t, 7)
	b.requireConnections(t, 8, 2)
	require.Empty(t, b.lost)
}

// A live relay whose entries were removed writes them again.
func TestRemovedEntriesOfLiveRelayAreRestored(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.requireConnections(t, 7, 1)
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	first, err := kv.Get(t.Context(), connection(7, 1).Key())
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), "relay.a"))
	require.NoError(t, kv.Purge(t.Context(), connection(7, 1).Key()))
	require.Eventually(t, func() bool {
		rewritten, err := kv.Get(t.Context(), connection(7, 1).Key())
		return err == nil && rewritten.Revision() > first.Revision()
	}, timeout, 10*time.Millisecond)
	b.requireConnections(t, 7, 1)
	a.Disconnected(connection(7, 1), time.Now(), "")
	b.requireConnections(t, 7)
}

func TestEndOfOwnConnectionIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	var removed []int64
	s := relaynats.NewRegistryStore(relaynats.RegistryConfig{
		Self: registry.Relay{ID: "a"}, Registry: registry.New(), Events: lostEvents{},
		OnRemoved: func(c registry.Connection) { removed = append(removed, c.ID) },
	})
	s.Connected(connection(7, 1))
	require.Empty(t, removed)
	s.Disconnected(connection(7, 1), time.Now(), events.DisconnectReasonLost)
	require.Equal(t, []int64{1}, removed)
}

func TestLeaseIsRefreshed(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second // long enough for refresh delays on a slow machine
	server := natstest.Server(t)
	a, b := startWithLease(t, server, "a", lease), start(t, server, "b")
	a.Connected(connection(7, 1))
	b.requireConnections(t, 7, 1)
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	first, err := kv.Get(t.Context(), "relay.a")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		entry, err := kv.Get(t.Context(), "relay.a")
		require.NoError(t, err, "it is refreshed before it expires")
		require.Len(t, b.registry.Agent(7), 1)
		return entry.Created().Sub(first.Created()) > lease
	}, timeout, 20*time.Millisecond)
}

// The bucket is in memory: NATS loses it when it starts again. The registry keeps its content during the
// outage, and the bucket is refilled.
func TestLostBucketIsRefilled(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	a.Connected(connection(7, 1))
	a.Connected(connection(8, 2))
	b.requireConnections(t, 7, 1)
	b.requireConnections(t, 8, 2)
	server.Down()
	a.Disconnected(connection(8, 2), time.Now(), "")
	a.Connected(connection(9, 3))
	require.Len(t, b.registry.Agent(7), 1, "the entry stays valid")
	require.NoError(t, server.Restart())
	b.requireConnections(t, 9, 3)
	b.requireConnections(t, 8)
	b.requireConnections(t, 7, 1)
	late := start(t, server, "c")
	late.requireConnections(t, 7, 1)
	late.requireConnections(t, 9, 3)
}
