package topology_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

func options() topology.Options { return topology.Options{StorageBytes: 100 << 20} }

// TestStreamsOfAnEarlierVersionAreUpdated starts with streams of version 1, without retention limits.
func TestStreamsOfAnEarlierVersionAreUpdated(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := t.Context()
	for _, stream := range topology.Streams() {
		cfg := stream.Config(cell, options())
		cfg.AllowMsgTTL = false
		if stream.Name == topology.StreamDesired {
			cfg.RePublish = &jetstream.RePublish{
				Source: cell.All(topology.FamilyDesired), Destination: cell.All(topology.FamilyDesiredLog),
			}
		}
		cfg.Metadata["lockstep.dev/topology"] = "1"
		_, err := js.CreateStream(ctx, cfg)
		require.NoError(t, err)
	}
	_, err := js.Publish(ctx, cell.Desired(7, "kept"), nil)
	require.NoError(t, err)
	fading := &nats.Msg{
		Subject: cell.Desired(7, "over"), Data: []byte("terminated"), Header: nats.Header{jetstream.MsgTTLHeader: {"1s"}},
	}
	_, err = js.PublishMsg(ctx, fading)
	require.Error(t, err, "not yet")

	for range 2 {
		require.NoError(t, topology.Ensure(ctx, js, cell, options()))
	}
	for _, stream := range topology.Streams() {
		s, err := js.Stream(ctx, stream.Name)
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(topology.Version), s.CachedInfo().Config.Metadata["lockstep.dev/topology"], stream.Name)
		require.Equal(t, stream.AllowTTL, s.CachedInfo().Config.AllowMsgTTL, stream.Name)
	}
	_, err = js.Publish(ctx, cell.Desired(7, "over"), []byte("running"))
	require.NoError(t, err)
	_, err = js.PublishMsg(ctx, fading)
	require.NoError(t, err)
	desired, err := js.Stream(ctx, topology.StreamDesired)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := desired.GetLastMsgForSubject(context.Background(), cell.Desired(7, "over"))
		return errors.Is(err, jetstream.ErrMsgNotFound)
	}, timeout, 50*time.Millisecond, "the expired message is not republished")
	_, err = desired.GetLastMsgForSubject(ctx, cell.Desired(7, "kept"))
	require.NoError(t, err)

	// Only the writer stores the history.
	log, err := js.Stream(ctx, topology.StreamDesiredLog)
	require.NoError(t, err)
	require.Equal(t, uint64(1), log.CachedInfo().State.Msgs, "only the earlier message")
}

// TestEnsureCreatesTheBucketOfTheCellMap tries what would remove the entries of others: only a new value of an entry is
// accepted.
func TestEnsureCreatesTheBucketOfTheCellMap(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := natstest.Context(t)
	for range 2 {
		require.NoError(t, topology.Ensure(ctx, js, cell, options()))
		kv, err := js.KeyValue(ctx, topology.BucketCells)
		require.NoError(t, err)
		_, err = kv.Put(ctx, "cell.one", []byte("{}"))
		require.NoError(t, err)
		_, err = js.Publish(ctx, topology.CellsCell("two"), []byte("{}"))
		require.NoError(t, err)
		require.Error(t, kv.Purge(ctx, "cell.one"))
		for name, value := range map[string]string{"Nats-Rollup": "all", "Nats-TTL": "1s"} {
			m := &nats.Msg{Subject: topology.CellsCell("two"), Header: nats.Header{name: {value}}}
			_, err = js.PublishMsg(ctx, m)
			require.Error(t, err, name)
		}
		_, err = js.Publish(ctx, topology.CellsOrganization(7), make([]byte, topology.MaxCellsEntry+1))
		require.Error(t, err)
	}
	stream, err := js.Stream(ctx, topology.StreamCells)
	require.NoError(t, err)
	require.Equal(t, uint64(2), stream.CachedInfo().State.Msgs, "only the last entry of each cell")
}

// TestEnsureCreatesTheBucketOfTheGateways tries what would remove the entries of others.
func TestEnsureCreatesTheBucketOfTheGateways(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := natstest.Context(t)
	for range 2 {
		require.NoError(t, topology.Ensure(ctx, js, cell, options()))
		_, err := js.Publish(ctx, topology.GatewayRevoked("a"), nil, jetstream.WithMsgTTL(time.Second))
		require.NoError(t, err)
		_, err = js.Publish(ctx, topology.GatewayHostKey("w"), []byte("key"))
		require.NoError(t, err)
		_, err = js.Publish(ctx, topology.GatewayHostKey("w"), []byte("other"), jetstream.WithExpectLastSequencePerSubject(0))
		require.Error(t, err, "it exists")
		_, err = js.PublishMsg(ctx, &nats.Msg{
			Subject: topology.GatewayHostKey("w"), Header: nats.Header{"Nats-Rollup": {"all"}},
		})
		require.Error(t, err)
		_, err = js.Publish(ctx, topology.GatewayHostKey("w"), make([]byte, 4<<10+1))
		require.Error(t, err)
	}
	kv, err := js.KeyValue(ctx, topology.BucketGateway)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := kv.Get(context.Background(), "revoked.a")
		return errors.Is(err, jetstream.ErrKeyNotFound)
	}, timeout, 50*time.Millisecond)
	_, err = kv.Get(ctx, "host_key.w")
	require.NoError(t, err)
}

func TestEnsureRelaysCreatesTheBucket(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	for range 2 {
		require.NoError(t, topology.EnsureRelays(natstest.Context(t), js, options()))
		kv, err := js.KeyValue(t.Context(), topology.BucketRelays)
		require.NoError(t, err)
		// The bucket supports what relays need: entries that expire, and delete markers.
		watcher, err := kv.WatchAll(t.Context())
		require.NoError(t, err)
		_, err = js.Publish(t.Context(), "$KV.RELAYS.relay.a", nil, jetstream.WithMsgTTL(time.Second))
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), "connection.7.1", nil)
		require.NoError(t, err)
		require.NoError(t, kv.Purge(t.Context(), "connection.7.1", jetstream.PurgeTTL(time.Second)))
		require.Eventually(t, func() bool {
			select {
			case entry := <-watcher.Updates():
				return entry != nil && entry.Key() == "relay.a" && entry.Operation() != jetstream.KeyValuePut
			default:
				return false
			}
		}, timeout, time.Millisecond, "the watcher receives the expiry of a lease")
		require.NoError(t, watcher.Stop())
		require.NoError(t, topology.EnsureRelays(natstest.Context(t), js, options()), "existing entries are kept")
		require.NoError(t, js.DeleteKeyValue(t.Context(), topology.BucketRelays))
	}
}

// TestStreamsFitExactly has a server with as much storage as the streams need, and no byte more.
func TestStreamsFitExactly(t *testing.T) {
	t.Parallel()
	storage := options().StorageBytes
	server := natstest.Start(t, natsd.Options{MaxStore: storage})
	js := natstest.JetStream(t, server)
	ctx := t.Context()
	for range 2 {
		require.NoError(t, topology.Ensure(ctx, js, cell, options()))
	}

	// An earlier version gave the storage of the last streams to the first one.
	first := topology.Streams()[0]
	cfg := first.Config(cell, options())
	for _, stream := range topology.Streams()[5:] {
		cfg.MaxBytes += stream.Config(cell, options()).MaxBytes
		require.NoError(t, js.DeleteStream(ctx, stream.Name))
	}
	cfg.Metadata["lockstep.dev/topology"] = strconv.Itoa(topology.Version - 1)
	_, err := js.UpdateStream(ctx, cfg)
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(ctx, js, cell, options()))
	_, err = js.Stream(ctx, topology.Streams()[5].Name)
	require.NoError(t, err)

	larger := options()
	larger.StorageBytes *= 4
	require.NoError(t, js.DeleteStream(ctx, first.Name))
	err = topology.Ensure(ctx, js, cell, larger)
	require.ErrorContains(t, err, "stream ")
	require.ErrorContains(t, err, ": all streams together reserve 419430400 bytes")
	require.ErrorContains(t, err, "lower streams.storage")
}

// TestStorageFollowsTheSetting has a server with as much storage as the streams need before they shrink.
func TestStorageFollowsTheSetting(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Start(t, natsd.Options{MaxStore: options().StorageBytes}))
	for _, storage := range []int64{100 << 20, 50 << 20, 100 << 20} {
		opts := topology.Options{StorageBytes: storage}
		require.NoError(t, topology.Ensure(t.Context(), js, cell, opts))
		for _, declared := range topology.Streams() {
			stream, err := js.Stream(t.Context(), declared.Name)
			require.NoError(t, err)
			require.Equal(t, declared.Config(cell, opts).MaxBytes, stream.CachedInfo().Config.MaxBytes, declared.Name)
		}
	}
}

func TestOldReplicaDoesNotRevertStreams(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := t.Context()
	require.NoError(t, topology.Ensure(ctx, js, cell, options()))
	s, err := js.Stream(ctx, topology.StreamDesired)
	require.NoError(t, err)
	newer := s.CachedInfo().Config
	newer.Metadata["lockstep.dev/topology"] = strconv.Itoa(topology.Version + 1)
	newer.Description = "newer"
	_, err = js.UpdateStream(ctx, newer)
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(ctx, js, cell, options()))
	s, err = js.Stream(ctx, topology.StreamDesired)
	require.NoError(t, err)
	require.Equal(t, "newer", s.CachedInfo().Config.Description)
}

// TestReplicasFollowTheSetting starts with consumers that an earlier version created with one replica.
func TestReplicasFollowTheSetting(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t)
	js := cluster.Connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	ensure := func(replicas int) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			opts := topology.Options{StorageBytes: 100 << 20, Replicas: replicas}
			require.NoError(c, topology.Ensure(ctx, js, cell, opts))
			require.NoError(c, topology.EnsureAgent(ctx, js, cell, 7))
		}, timeout, 10*time.Millisecond)
	}
	requireReplicas := func(want int) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			for _, declared := range topology.Streams() {
				stream, err := js.Stream(ctx, declared.Name)
				require.NoError(c, err)
				info := stream.CachedInfo()
				require.Equal(c, want, info.Config.Replicas, declared.Name)
				require.NotNil(c, info.Cluster, declared.Name)
				require.Len(c, info.Cluster.Replicas, want-1, declared.Name)
			}
			for _, declared := range topology.AgentConsumers(cell, 7) {
				consumer, err := js.Consumer(ctx, declared.Stream, declared.Config.Durable)
				require.NoError(c, err)
				info := consumer.CachedInfo()
				require.NotNil(c, info.Cluster, declared.Config.Durable)
				require.Len(c, info.Cluster.Replicas, want-1, declared.Config.Durable)
			}
		}, timeout, 10*time.Millisecond)
	}
	ensure(1)
	_, err := js.Publish(ctx, cell.Desired(7, "w"), []byte("kept"))
	require.NoError(t, err)
	for _, declared := range topology.AgentConsumers(cell, 7) {
		declared.Config.Replicas = 1
		_, err := js.UpdateConsumer(ctx, declared.Stream, declared.Config)
		require.NoError(t, err)
	}
	requireReplicas(1)
	ensure(3)
	requireReplicas(3)
	ensure(1)
	requireReplicas(1)
	consumer, err := js.Consumer(ctx, topology.StreamDesired, topology.DispatcherConsumer(7))
	require.NoError(t, err)
	m, err := consumer.Next(jetstream.FetchMaxWait(timeout))
	require.NoError(t, err)
	require.Equal(t, "kept", string(m.Data()))
}
