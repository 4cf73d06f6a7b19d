package deploys_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	soon = time.Minute
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fixture is a running service with its own database and its own NATS server, which has the permissions of production.
type fixture struct {
	t       *testing.T
	keys    string
	server  *natsd.Server
	state   jetstream.JetStream
	watcher jetstream.JetStream
	addrs   map[string]string
	private ed25519.PrivateKey
	events  int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{t: t, keys: t.TempDir()}
	report, err := natsauth.Init(b.keys, natsauth.Options{Principals: []natsauth.StaticPrincipal{natsadmin.Principal()}})
	require.NoError(t, err)
	b.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(b.keys, "store")})
	b.state, b.watcher = b.as(natsauth.PrincipalState), b.as(natsadmin.Name)
	require.NoError(t, topology.Ensure(natstest.Context(t), b.state, cell, topology.Options{StorageBytes: 1 << 30}))
	b.directory()
	b.createConsumers()
	b.start()
	return b
}

// createConsumers creates the consumers that the service requests, as the service state does.
func (b *fixture) createConsumers() {
	b.t.Helper()
	responder := &consumers.Responder{
		Direct: consumers.Direct{JetStream: b.state, Cell: cell, Service: natsauth.PrincipalState},
		Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- responder.Run(ctx, func() { close(ready) }) }()
	b.t.Cleanup(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
	select {
	case <-ready:
	case <-time.After(soon):
		require.FailNow(b.t, "no consumers can be requested")
	}
}

func (b *fixture) as(principal string) jetstream.JetStream {
	b.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(b.keys, principal))
	require.NoError(b.t, err)
	return natstest.JetStream(b.t, b.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
}

func (b *fixture) start() {
	b.t.Helper()
	cfg := deploys.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Telemetry.Out = io.Discard
	cfg.Database.URL = config.URL(pgtest.Database(b.t))
	cfg.NATS.URL = config.URL(b.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(b.keys, natsauth.PrincipalDeploys))
	require.Empty(b.t, cfg.Validate())
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addrs map[string]string) { ready <- addrs }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- deploys.Main(ctx, cfg) }()
	b.t.Cleanup(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
	select {
	case b.addrs = <-ready:
	case err := <-ended:
		ended <- err
		require.FailNow(b.t, "the service ended", "%v", err)
	case <-time.After(2 * soon):
		require.FailNow(b.t, "the service is not ready")
	}
}

// directory publishes a key, an administrator and a user who may read agent 7.
func (b *fixture) directory() {
	b.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(b.t, err)
	b.private = private
	now := time.Now().UTC()
	for subject, entry := range map[string]struct {
		kind string
		data any
	}{
		"key/k": {events.TypeDirectoryKey, events.DirectoryKey{
			KeyID:     "k",
			Algorithm: events.KeyAlgorithmEdDSA,
			PublicKey: base64.RawURLEncoding.EncodeToString(public),
			NotBefore: now.Add(-time.Hour),
			NotAfter:  now.Add(time.Hour),
		}},
		"user/5": {
			events.TypeDirectoryUser, events.DirectoryUser{UserID: 5, Admin: true, State: events.UserStateActive},
		},
		"user/6":         {events.TypeDirectoryUser, events.DirectoryUser{UserID: 6, State: events.UserStateActive}},
		"user/8":         {events.TypeDirectoryUser, events.DirectoryUser{UserID: 8, State: events.UserStateActive}},
		"organization/1": {events.TypeDirectoryOrganization, events.DirectoryOrganization{OrganizationID: 1}},
		"group/2":        {events.TypeDirectoryGroup, events.DirectoryGroup{GroupID: 2, OrganizationID: 1}},
		"project/3":      {events.TypeDirectoryProject, events.DirectoryProject{ProjectID: 3, OrganizationID: 1, GroupID: 2}},
		"agent/7":        {events.TypeDirectoryAgent, events.DirectoryAgent{AgentID: 7, ProjectID: 3}},
		"membership/m": {events.TypeDirectoryMembership, events.DirectoryMembership{
			UserID: 6, Scope: events.MembershipScopeProject, ScopeID: 3, Role: events.MembershipRoleReader,
		}},
	} {
		kind, id := filepath.Split(subject)
		name := kind[:len(kind)-1]
		if name == "membership" {
			id = "6-project-3"
		}
		b.publish(b.state, cell.Directory(name, id), entry.kind, event.ServiceSource(string(cell), "state"), entry.data)
	}
}

func (b *fixture) publish(js jetstream.JetStream, subject, kind, source string, data any) {
	b.t.Helper()
	b.events++
	e, err := event.New(event.Attributes{
		Type:    kind,
		Source:  source,
		Subject: "s",
		ID:      fmt.Sprint(b.events),
		Time:    time.Now(),
	}, data)
	require.NoError(b.t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(b.t, err)
	_, err = js.PublishMsg(b.t.Context(), msg)
	require.NoError(b.t, err)
}

// observe publishes an observation of a DaemonSet of agent 7. Each template generation is a rollout.
func (b *fixture) observe(generation, version, updated int) {
	b.t.Helper()
	at := time.Now().UTC()
	b.publish(b.watcher, cell.ObservedWorkload(7, "daemonset", "kube", "log"), events.TypeObservedWorkload,
		event.AgentSource(string(cell), 7, "watcher"), events.ObservedWorkload{
			Object: events.ObjectMeta{
				ClusterUID:      "cluster",
				Namespace:       "kube",
				Name:            "log",
				UID:             "u",
				ResourceVersion: fmt.Sprint(version),
				Verb:            events.VerbUpserted,
				UpdateType:      events.UpdateTypePartial,
				ObservedAt:      at, CreatedAt: &at, FirstSeen: version == 1,
			},
			Kind:                events.WorkloadKindDaemonset,
			Generation:          generation,
			ObservedGeneration:  generation,
			TemplateGeneration:  generation,
			SpecReplicas:        new(3),
			HasStatus:           true,
			Strategy:            "RollingUpdate",
			Replicas:            3,
			UpdatedReplicas:     updated,
			ReadyReplicas:       updated,
			AvailableReplicas:   updated,
			UnavailableReplicas: 3 - updated,
			Template: &events.PodTemplate{
				Digest: fmt.Sprint("d", generation),
				Images: []events.TemplateImage{{Container: "c", Image: fmt.Sprint("i:", generation)}},
			},
		})
}

func (b *fixture) client(
	user int64, admin bool,
) (deploysv1connect.RolloutServiceClient, deploysv1connect.OperationServiceClient) {
	b.t.Helper()
	now := time.Now()
	token, err := access.Sign(b.private, "k", access.Grant{
		Issuer:    access.Issuer(cell),
		Audience:  []string{"deploys"},
		UserID:    user,
		Admin:     admin,
		IssuedAt:  now,
		ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(b.t, err)
	transport := &http.Transport{}
	b.t.Cleanup(transport.CloseIdleConnections)
	bearer := &http.Client{Transport: authorized{transport, token}}
	options := connect.WithInterceptors(fault.NewInterceptor(nil))
	url := "http://" + b.addrs["api"]
	return deploysv1connect.NewRolloutServiceClient(bearer, url, options),
		deploysv1connect.NewOperationServiceClient(bearer, url, options)
}

type authorized struct {
	http.RoundTripper

	token string
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return a.RoundTripper.RoundTrip(r)
}

func TestRolloutFromObservationToAPI(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	reader, operations := b.client(6, false)
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	watch, err := reader.WatchRollouts(ctx, connect.NewRequest(&deploysv1.WatchRolloutsRequest{}))
	require.NoError(t, err)
	defer watch.Close()
	b.observe(1, 1, 3)
	b.observe(2, 2, 1)
	require.True(t, watch.Receive(), "%v", watch.Err())
	running := watch.Msg().GetRollout()
	require.Equal(t, deploysv1.RolloutState_ROLLOUT_STATE_RUNNING, running.GetState())
	require.Equal(t, "i:2", running.GetImages()[0].GetImage())
	b.observe(2, 3, 3)
	for running.GetState() == deploysv1.RolloutState_ROLLOUT_STATE_RUNNING {
		require.True(t, watch.Receive(), "%v", watch.Err())
		running = watch.Msg().GetRollout()
	}
	require.Equal(t, deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED, running.GetState())
	got, err := reader.GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{
		Workload: &deploysv1.Workload{Namespace: "kube", Kind: "daemonset", Name: "log"},
	}))
	require.NoError(t, err)
	require.Equal(t, running.GetId(), got.Msg.GetRollout().GetId())
	require.Equal(t, "started", got.Msg.GetFacts()[0].GetFact())
	stats, err := reader.GetStats(t.Context(), connect.NewRequest(&deploysv1.GetStatsRequest{}))
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Msg.GetTotal().GetCompleted())
	require.Len(t, stats.Msg.GetWorkloads(), 1)
	require.NotNil(t, stats.Msg.GetTotal().GetDurationP95())

	// A user without a role in the project sees nothing, and only administrators rebuild.
	stranger, _ := b.client(8, false)
	list, err := stranger.ListRollouts(t.Context(), connect.NewRequest(&deploysv1.ListRolloutsRequest{}))
	require.NoError(t, err)
	require.Empty(t, list.Msg.GetRollouts())
	_, err = stranger.GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{Id: running.GetId()}))
	require.Equal(t, errcode.NotFound, fault.CodeOf(err))
	refused, err := operations.Rebuild(t.Context(), connect.NewRequest(&deploysv1.RebuildRequest{}))
	require.NoError(t, err)
	require.False(t, refused.Receive())
	require.Equal(t, errcode.PermissionDenied, fault.CodeOf(refused.Err()))
	require.NoError(t, refused.Close())

	_, operations = b.client(5, true)
	rebuilding, err := operations.Rebuild(t.Context(), connect.NewRequest(&deploysv1.RebuildRequest{}))
	require.NoError(t, err)
	var outcome *deploysv1.RebuildOutcome
	for rebuilding.Receive() {
		outcome = rebuilding.Msg().GetOutcome()
	}
	require.NoError(t, rebuilding.Err())
	require.NoError(t, rebuilding.Close())
	require.True(t, outcome.GetReplaced())
	require.Empty(t, outcome.GetDifferences())
}

func TestServiceMayPublishOnlyFacts(t *testing.T) {
	t.Parallel()
	keys := t.TempDir()
	report, err := natsauth.Init(keys, natsauth.Options{})
	require.NoError(t, err)
	b := &fixture{
		t:      t,
		keys:   keys,
		server: natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(keys, "store")}),
	}
	require.NoError(t, topology.Ensure(natstest.Context(t), b.as(natsauth.PrincipalState), cell,
		topology.Options{StorageBytes: 1 << 30}))
	own := b.as(natsauth.PrincipalDeploys)
	_, err = own.Publish(t.Context(), cell.Deploy("c", "n", "deployment", "w", "started"), nil)
	require.NoError(t, err)
	for _, subject := range []string{
		cell.ObservedTick(7), cell.Directory("user", "1"), cell.Desired(7, "w"), cell.ControlResync(7),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err = own.Publish(ctx, subject, nil)
		cancel()
		require.Error(t, err, subject)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.Error(t, own.DeleteStream(ctx, topology.StreamObserved))
}
