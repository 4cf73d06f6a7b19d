package watcher_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cellName = topology.Cell("local")
	timeout  = 60 * time.Second // of a wait for a condition
)

// lastAgent gives concurrent tests agents of their own, and so labels and namespaces, on the shared
// cluster.
var lastAgent atomic.Int64 //nolint:gochecknoglobals // unique across tests

// fixture is a NATS server with accounts and auth callout, and one registered agent.
type fixture struct {
	server      *natsd.Server
	js          jetstream.JetStream // as the state service
	agent       int64
	credentials string // file
	caFile      string // of the server's certificate, empty without TLS
}

// acceptAll accepts every user that is an agent id.
type acceptAll struct{}

func (acceptAll) Authenticate(_ context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	id, err := strconv.ParseInt(c.User, 10, 64)
	if err != nil {
		return natsauth.Principal{}, natsauth.ErrRefused
	}
	return natsauth.Principal{Kind: natsauth.KindAgent, AgentID: id}, nil
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWith(t, natsauth.Options{})
}

func newFixtureWith(t *testing.T, options natsauth.Options) *fixture {
	t.Helper()
	dir := t.TempDir()
	options.Cell, options.ListenPort, options.StoreDir = cellName, -1, filepath.Join(dir, "store")
	_, err := natsauth.Init(dir, options)
	require.NoError(t, err)
	f := &fixture{
		server: natstest.Start(t, natsd.Options{ConfigFile: natsauth.ConfigFile(dir)}),
		agent:  1000 + lastAgent.Add(1),
	}
	if options.TLS != nil {
		f.caFile = options.TLS.CertFile
	}

	keys, err := natsauth.LoadCalloutKeys(dir)
	require.NoError(t, err)
	responder := &natsauth.Responder{
		Conn:          f.static(t, dir, natsauth.PrincipalCallout),
		Keys:          keys,
		Cell:          cellName,
		Authenticator: acceptAll{},
		Logger:        slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- responder.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	<-responder.Started()

	f.js = natstest.Open(t, f.static(t, dir, natsauth.PrincipalState))
	require.NoError(t, topology.Ensure(natstest.Context(t), f.js, cellName, topology.Options{StorageBytes: 200 << 20}))
	require.NoError(t, topology.EnsureAgent(t.Context(), f.js, cellName, f.agent))
	f.credentials = f.writeCredentials(t, dir)
	return f
}

func (f *fixture) static(t *testing.T, dir, principal string) *nats.Conn {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, principal))
	require.NoError(t, err)
	options := []nats.Option{seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(principal))}
	if f.caFile != "" {
		options = append(options, nats.RootCAs(f.caFile))
	}
	return natstest.Connect(t, f.server, options...)
}

func (f *fixture) writeCredentials(t *testing.T, dir string) string {
	t.Helper()
	own, err := nkeys.CreateCurveKeys()
	require.NoError(t, err)
	seed, err := own.Seed()
	require.NoError(t, err)
	sealer, err := own.PublicKey()
	require.NoError(t, err)
	path := filepath.Join(dir, "agent.json")
	require.NoError(t, natsauth.WriteAgentCredentials(path, natsauth.AgentCredentials{
		ServerURLs: []string{
			f.server.ClientURL(),
		},
		Cell:      cellName,
		AgentID:   f.agent,
		Token:     natsauth.NewToken(natsauth.TokenAgent),
		CurveSeed: string(seed),
		SealerKey: sealer,
	}))
	return path
}

// publish publishes to the agent as the state service does.
func (f *fixture) publish(t *testing.T, subject, kind, id string, data any) {
	t.Helper()
	e, err := event.New(
		event.Attributes{
			Type:    kind,
			Source:  event.ServiceSource(string(cellName), "state"),
			Subject: "agent",
			ID:      id,
			Time:    time.Now(),
		},
		data,
	)
	require.NoError(t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(t, err)
	_, err = f.js.PublishMsg(t.Context(), msg)
	require.NoError(t, err)
}

func (f *fixture) configure(t *testing.T, revision int, interval time.Duration) {
	t.Helper()
	f.publish(
		t,
		cellName.ControlConfig(f.agent),
		events.TypeAgentConfig,
		"config/"+strconv.Itoa(revision),
		events.AgentConfig{
			ConfigRevision: revision, FullResyncIntervalMs: int(interval.Milliseconds()), UnschedulablePatienceMs: 1000,
		},
	)
}

func (f *fixture) request(t *testing.T, nonce string) {
	t.Helper()
	f.publish(t, cellName.ControlResync(f.agent), events.TypeResyncRequested, "resync/"+nonce, events.ResyncRequested{
		Nonce: nonce, Cause: events.ResyncRequestCauseOperator,
	})
}

// recorder reads all events of the agent's watchers.
type recorder struct {
	messages jetstream.MessagesContext
	unread   []recorded // of the last message
}

// recorded is one event of the stream. Fields that its type does not have are empty.
type recorded struct {
	Subject string `json:"-"`
	Type    string `json:"-"`
	ID      string `json:"-"`

	Object  events.ObjectMeta `json:"object"`
	Kind    string            `json:"kind"`
	Reason  string            `json:"reason"`
	Phase   string            `json:"phase"`
	Owner   string            `json:"deployment"`
	Replica *int              `json:"spec_replicas"`
	Revised int               `json:"revision"`

	ResyncID      string               `json:"resync_id"`
	Cause         events.ResyncCause   `json:"cause"`
	Nonce         string               `json:"nonce"`
	Count         int                  `json:"count"`
	ListVersions  []events.ListVersion `json:"list_versions"`
	KnownVersions []events.ListVersion `json:"known_versions"`
	ClusterUID    string               `json:"cluster_uid"`
	ObservedAt    time.Time            `json:"observed_at"`

	Scope       string              `json:"scope"`
	Selection   string              `json:"selection"`
	Unselected  bool                `json:"unselected"`
	Skipped     int                 `json:"skipped_versions"`
	Workload    string              `json:"workload"`
	WorkloadUID string              `json:"workload_uid"`
	Available   int                 `json:"available_replicas"`
	Updated     int                 `json:"updated_replicas"`
	Template    *events.PodTemplate `json:"template"`
	Pods        []events.WaitingPod `json:"pods"`

	Members []events.ResyncMember `json:"members"`
}

// members returns the members in a message of several, else the event itself.
func (h recorded) members(t *testing.T) []recorded {
	t.Helper()
	if h.Type != events.TypeObservedMembers {
		return []recorded{h}
	}
	members := make([]recorded, len(h.Members))
	for i, m := range h.Members {
		require.NoError(t, events.Validate(m.Type, m.Data), "%s", m.Data)
		members[i] = recorded{Subject: h.Subject, Type: m.Type, ID: h.ID}
		require.NoError(t, json.Unmarshal(m.Data, &members[i]))
	}
	return members
}

func (f *fixture) record(t *testing.T) *recorder {
	t.Helper()
	consumer, err := f.js.OrderedConsumer(t.Context(), topology.StreamObserved, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{cellName.ObservedAgent(f.agent)}, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	require.NoError(t, err)
	messages, err := consumer.Messages()
	require.NoError(t, err)
	t.Cleanup(messages.Stop)
	return &recorder{messages: messages}
}

// until reads to the first event that matches, and returns all events read. The match is the last.
func (p *recorder) until(t *testing.T, what string, match func(recorded) bool) []recorded {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var read []recorded
	for {
		for len(p.unread) > 0 {
			h := p.unread[0]
			read, p.unread = append(read, h), p.unread[1:]
			if match(h) {
				return read
			}
		}
		msg, err := p.messages.Next(jetstream.NextContext(ctx))
		if err != nil && ctx.Err() == nil {
			continue // the ordered consumer reconnects
		}
		require.NoError(t, err, "waiting for %s; read meanwhile: %+v", what, read)
		e, err := event.Decode(msg.Headers(), msg.Data())
		require.NoError(t, err)
		require.NoError(t, events.Validate(e.Type(), e.Data()), "%s", e.Data())
		require.Equal(t, event.AgentSource(string(cellName), agentOf(t, msg.Subject()), "watcher"), e.Source())
		require.Empty(t, msg.Headers().Get(nats.MsgIdHdr))
		h := recorded{Subject: msg.Subject(), Type: e.Type(), ID: e.ID()}
		require.NoError(t, json.Unmarshal(e.Data(), &h))
		p.unread = h.members(t)
	}
}

func agentOf(t *testing.T, subject string) int64 {
	t.Helper()
	parsed, err := topology.Parse(subject)
	require.NoError(t, err)
	agent, err := parsed.Agent()
	require.NoError(t, err)
	return agent
}

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func deployment(name, uid string, version int) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version),
	}}
}

func atoi(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(version)
	require.NoError(t, err)
	return n
}
