package natsauth_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/port"
)

const clusterSize = 3

// startCluster starts servers from one rendered configuration that know each other.
func startCluster(t *testing.T, streams bool) (string, []*server.Server) {
	t.Helper()

	// Each server needs at least one route, even to itself, to run in cluster mode.
	first, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, first.Release()) })

	dir := initDir(t, natsauth.Options{Cluster: &natsauth.Cluster{
		Name: "test", ListenPort: -1, Routes: []string{"nats://" + first.Address()},
	}})
	servers := make([]*server.Server, 0, clusterSize)

	for i := range clusterSize {
		servers = append(servers, launchServer(t, dir, func(o *server.Options) {
			o.ServerName = "nats-" + strconv.Itoa(i)
			o.StoreDir = t.TempDir()
			o.JetStream = streams

			if i == 0 {
				o.Cluster.Port = first.Number()
			}
		}))
	}

	for _, s := range servers {
		require.True(t, s.ReadyForConnections(timeout))
	}

	require.Eventually(t, func() bool {
		led := !streams

		for _, s := range servers {
			if len(s.ActivePeers()) != clusterSize-1 && !streams {
				return false
			}

			led = led || s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == clusterSize
		}

		return led
	}, timeout, 10*time.Millisecond)

	return dir, servers
}

// awaitActiveServers waits until each server of the cluster knows all of them. A new route does not suffice.
func awaitActiveServers(t *testing.T, system *nats.Conn) {
	t.Helper()

	answers, err := system.SubscribeSync(system.NewInbox())
	require.NoError(t, err)

	defer answers.Unsubscribe()

	knowsAll := map[string]bool{}

	require.Eventually(t, func() bool {
		require.NoError(t, system.PublishRequest("$SYS.REQ.SERVER.PING", answers.Subject, nil))

		for {
			message, err := answers.NextMsg(100 * time.Millisecond)
			if err != nil {
				return len(knowsAll) == clusterSize
			}

			var answer server.ServerStatsMsg
			require.NoError(t, json.Unmarshal(message.Data, &answer))

			if answer.Stats.ActiveServers == clusterSize {
				knowsAll[answer.Server.ID] = true
			}
		}
	}, timeout, time.Millisecond)
}

func TestRelaysReplicateTheirBucket(t *testing.T) {
	t.Parallel()

	dir, servers := startCluster(t, true)
	c := &cell{dir: dir, server: servers[0]}
	js, err := jetstream.New(c.static(t, natsauth.PrincipalRelay))
	require.NoError(t, err)
	untilDone(t, func(ctx context.Context) error {
		return topology.EnsureRelays(ctx, js, topology.Options{Replicas: clusterSize})
	})

	bucket, err := js.KeyValue(testContext(t), topology.BucketRelays)
	require.NoError(t, err)
	_, err = bucket.Put(testContext(t), "relay.a", nil)
	require.NoError(t, err)

	stream, err := js.Stream(testContext(t), topology.StreamRelays)
	require.NoError(t, err)
	require.Len(t, stream.CachedInfo().Cluster.Replicas, clusterSize-1)
}

// TestAccountBoundaryInACluster lets agents come in at every server, while streams and consumers
// are led by any of them.
func TestAccountBoundaryInACluster(t *testing.T) {
	t.Parallel()

	dir, servers := startCluster(t, true)
	c := &cell{dir: dir, server: servers[0], directory: newDirectory()}
	c.startResponder(t)
	c.state = c.static(t, natsauth.PrincipalState)

	var err error
	c.js, err = jetstream.New(c.state)
	require.NoError(t, err)
	untilDone(t, func(ctx context.Context) error {
		return topology.Ensure(ctx, c.js, cellName, topology.Options{Replicas: clusterSize, StorageBytes: 100 << 20})
	})
	untilDone(t, func(ctx context.Context) error { return topology.EnsureAgent(ctx, c.js, cellName, agentOne) })

	// Messages that are lost to old pull requests are redelivered after AckWait.
	short := topology.AgentConsumers(cellName, agentOne)[0].Config
	short.AckWait = time.Second

	_, err = c.state.Subscribe("lockstep.local.secret.*.*", func(m *nats.Msg) {
		if err := m.Respond([]byte("secret")); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, err)
	require.NoError(t, c.state.Flush())

	for i, s := range servers {
		agent := dialAgent(t, s.ClientURL(), agentOne)
		js := agent.jetStream(t)

		untilDone(t, func(ctx context.Context) error {
			_, err := c.js.CreateOrUpdateConsumer(ctx, "DESIRED", short)

			return err
		})

		for _, subject := range []string{"observed.17.resync", "applied.17.w"} {
			publishUntilStored(t, js, "lockstep.local."+subject)
		}

		untilDone(t, func(ctx context.Context) error {
			answer, err := agent.RequestWithContext(ctx, "lockstep.local.secret.17.w", nil)
			if err == nil && string(answer.Data) != "secret" {
				t.Errorf("the answer is %q", answer.Data)
			}

			return err
		})

		in := startPullReader(t, agent.Conn, "DESIRED", "dispatcher-17", time.Second)
		in.log.await(t, "pull reader started")

		for round := range 2 {
			for j := range 5 {
				subject := "lockstep.local.desired.17." + strconv.Itoa(i) + strconv.Itoa(round) + strconv.Itoa(j)
				publishUntilStored(t, c.js, subject)

				message := receive(t, in.received)
				for message.Subject() != subject {
					message = receive(t, in.received) // One before it, again.
				}

				untilDone(t, message.DoubleAck)
			}

			require.NoError(t, agent.ForceReconnect())
			in.log.await(t, "pull reader started")
		}

		in.stop()

		untilDone(t, func(ctx context.Context) error {
			_, err := js.ResetConsumerToSequence(ctx, "DESIRED", "dispatcher-17", 1)

			return err
		})

		for _, complaint := range drain(agent.complaints) {
			require.NotErrorIs(t, complaint, nats.ErrPermissionViolation)
		}

		// The next server's agent starts with nothing to read.
		untilDone(t, func(ctx context.Context) error {
			err := c.js.DeleteConsumer(ctx, "DESIRED", "dispatcher-17")
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				return nil
			}

			return err
		})
		untilDone(t, func(ctx context.Context) error {
			stream, err := c.js.Stream(ctx, "DESIRED")
			if err != nil {
				return err
			}

			return stream.Purge(ctx)
		})
		agent.Close()
	}
}

// untilDone repeats a call until it succeeds, as every client of a cluster must: a change of the leader loses requests.
func untilDone(t *testing.T, call func(ctx context.Context) error) {
	t.Helper()

	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.NoError(collect, call(ctx))
	}, timeout, 10*time.Millisecond)
}

// publishUntilStored publishes a message once.
func publishUntilStored(t *testing.T, js jetstream.JetStream, subject string) {
	t.Helper()

	id := rand.Text()
	untilDone(t, func(ctx context.Context) error {
		_, err := js.Publish(ctx, subject, []byte("x"), jetstream.WithMsgID(id))

		return err
	})
}

func drain[T any](from <-chan T) []T {
	var all []T

	for {
		select {
		case value := <-from:
			all = append(all, value)
		default:
			return all
		}
	}
}
