package subscribers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	cell    = topology.Cell("local")
	timeout = 3 * time.Minute
)

// subscriberFixture has a NATS server, authenticates subscribers and publishes facts.
type subscriberFixture struct {
	server *natsd.Server
	js     jetstream.JetStream
	tokens map[string]string
}

// Authenticate accepts subscribers by name and token.
func (b *subscriberFixture) Authenticate(_ context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	name, listens := natsauth.ParseSubscriberUser(c.User)
	if token, known := b.tokens[name]; !known || token != c.Password || listens {
		return natsauth.Principal{}, natsauth.ErrRefused
	}
	filter := cell.All(topology.FamilyDeploy)
	return natsauth.Principal{Kind: natsauth.KindSubscriber, Name: name, Filter: filter}, nil
}

func setup(t *testing.T, names ...string) *subscriberFixture {
	t.Helper()
	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{
		Cell: cell, Principals: []natsauth.StaticPrincipal{natsadmin.Principal()},
	})
	require.NoError(t, err)
	b := &subscriberFixture{
		server: natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(dir, "store")}),
		tokens: map[string]string{},
	}
	as := func(principal string) *nats.Conn {
		seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, principal))
		require.NoError(t, err)
		return natstest.Connect(t, b.server, seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
	}
	state := natstest.Open(t, as(natsauth.PrincipalState))
	require.NoError(t, topology.Ensure(natstest.Context(t), state, cell, topology.Options{StorageBytes: 100 << 20}))
	for _, name := range names {
		b.tokens[name] = natsauth.NewToken(natsauth.TokenSubscriber)
		require.NoError(
			t,
			topology.EnsureSubscriber(t.Context(), state,
				topology.Subscriber{Name: name, Filter: cell.All(topology.FamilyDeploy)}),
		)
	}
	b.js = natstest.Open(t, as(natsadmin.Name))
	b.admit(t, dir, as(natsauth.PrincipalCallout))
	return b
}

// admit accepts subscribers until the test ends.
func (b *subscriberFixture) admit(t *testing.T, dir string, conn *nats.Conn) {
	t.Helper()
	keys, err := natsauth.LoadCalloutKeys(dir)
	require.NoError(t, err)
	r := &natsauth.Responder{Conn: conn, Keys: keys, Cell: cell, Authenticator: b, Logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	<-r.Started()
}

// credentials writes a subscriber's credentials to a file.
func (b *subscriberFixture) credentials(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".json")
	require.NoError(t, natsauth.WriteSubscriberCredentials(path, natsauth.SubscriberCredentials{
		Description: "a test",
		URL:         b.server.ClientURL(),
		User:        name,
		Password:    b.tokens[name],
		Listener:    natsauth.ListenerUser(name),
		InboxPrefix: natsauth.InboxPrefix(name),
		Stream:      topology.StreamDeploys,
		Consumer:    topology.SubscriberConsumer(name),
		Filter:      cell.All(topology.FamilyDeploy),
	}, ""))
	return path
}

// publish publishes facts as the service deploys does: CDEvents with Lockstep's data in customData.
func (b *subscriberFixture) publish(t *testing.T, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		at, took := time.Date(2026, 3, 2, 10, 40, n, 0, time.UTC), 1000*n
		name := fmt.Sprintf("progressed-%d", n)
		body, err := json.Marshal(map[string]any{
			"context": map[string]any{
				"version":   "0.5.1",
				"id":        name,
				"type":      "dev.cdeventsx.lockstep-rollout.progressed.0.1.0",
				"timestamp": at,
			},
			"subject": map[string]any{
				"id":      "shop/deployment/checkout",
				"type":    "rollout",
				"content": map[string]any{},
			},
			"customDataContentType": "application/json",
			"customData": events.DeployFact{
				Fact:       events.Fact(name),
				Sequence:   n,
				OccurredAt: at,
				ObservedAt: at,
				Provenance: events.ProvenanceObserved,
				DurationMs: &took,
				Workload:   events.Workload{ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: "checkout"},
			},
		})
		require.NoError(t, err)
		m := nats.NewMsg(cell.Deploy("c1", "shop", "deployment", "checkout", name))
		m.Data = body
		m.Header.Set("ce-id", "id-"+name)
		require.Eventually(t, func() bool {
			_, err := b.js.PublishMsg(t.Context(), m, jetstream.WithMsgID(name))
			return err == nil
		}, timeout, 10*time.Millisecond)
	}
}

// waiting returns how many facts a subscriber has not acknowledged.
func (b *subscriberFixture) waiting(t *testing.T, name string) int {
	t.Helper()
	c, err := b.js.Consumer(t.Context(), topology.StreamDeploys, topology.SubscriberConsumer(name))
	require.NoError(t, err)
	return int(c.CachedInfo().NumPending) + c.CachedInfo().NumAckPending
}
