package cli

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/client-go/tools/clientcmd"
	kubeconfig "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	relayCell = topology.Cell("local")
	// Agent east of project 3, an administrator, a reader, and a user without a role.
	eastID, eastProject = 7, 3
	adminID, readerID   = 5, 6
	outsiderID          = 9
)

// relayFixture is a real relay and a real relay agent in a system with a fake state service and a
// fake cluster.
type relayFixture struct {
	t         *testing.T
	dir       string
	server    *natsd.Server
	state     jetstream.JetStream // connection of the state service
	private   ed25519.PrivateKey
	token     string // of the agent
	published int
	keys      stack.RelayKeys
	relay     map[string]string // addresses of the relay
	flags     []string
}

// newRelayFixture starts a relay. Call startAgent to connect the agent.
func newRelayFixture(t *testing.T, targets ...events.RelayTarget) *relayFixture {
	t.Helper()
	b := &relayFixture{t: t, dir: t.TempDir(), token: natsauth.NewToken(natsauth.TokenAgent)}
	report, err := natsauth.Init(b.dir, natsauth.Options{})
	require.NoError(t, err)
	b.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(b.dir, "store")})
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(b.dir, natsauth.PrincipalState))
	require.NoError(t, err)
	b.state = natstest.JetStream(t, b.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalState)))
	require.NoError(t, topology.Ensure(natstest.Context(t), b.state, relayCell, topology.Options{StorageBytes: 1 << 30}))
	b.publishDirectory()
	b.publish(relayCell.ControlConfig(eastID), events.TypeAgentConfig, events.AgentConfig{
		ConfigRevision: 1, FullResyncIntervalMs: 3_600_000, UnschedulablePatienceMs: 1, RelayTargets: targets,
	})
	b.keys, _, err = stack.InitRelay(filepath.Join(b.dir, "relay"))
	require.NoError(t, err)
	b.startRelay()
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewTokenServiceHandler(&fakeStateTokens{fixture: b}))
	mux.Handle(statev1connect.NewAgentServiceHandler(fakeAgents{targets: targets}))
	state := httptest.NewServer(mux)
	t.Cleanup(func() {
		closeIdle()
		state.Close()
	})
	b.flags = []string{
		"--server", state.URL,
		"--relay-server", "https://" + b.relay["external"],
		"--relay-ca-file", b.keys.CertFile,
	}
	return b
}

func (b *relayFixture) publish(subject, kind string, data any) {
	b.t.Helper()
	b.published++
	e, err := event.New(event.Attributes{
		Type:    kind,
		Source:  event.ServiceSource(string(relayCell), "state"),
		Subject: "s",
		ID:      strconv.Itoa(b.published),
		Time:    time.Now(),
	}, data)
	require.NoError(b.t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(b.t, err)
	_, err = b.state.PublishMsg(b.t.Context(), msg)
	require.NoError(b.t, err)
}

func (b *relayFixture) publishDirectory() {
	b.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(b.t, err)
	b.private = private
	now := time.Now().UTC()
	publish := func(kind, id, eventType string, data any) {
		b.publish(relayCell.Directory(kind, id), eventType, data)
	}
	publish("key", "k", events.TypeDirectoryKey, events.DirectoryKey{
		KeyID:     "k",
		Algorithm: events.KeyAlgorithmEdDSA,
		PublicKey: base64.RawURLEncoding.EncodeToString(public),
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(time.Hour),
	})
	publish("organization", "1", events.TypeDirectoryOrganization, events.DirectoryOrganization{OrganizationID: 1})
	publish("group", "2", events.TypeDirectoryGroup, events.DirectoryGroup{GroupID: 2, OrganizationID: 1})
	publish("project", "3", events.TypeDirectoryProject,
		events.DirectoryProject{ProjectID: eastProject, OrganizationID: 1, GroupID: 2})
	for _, id := range []int{adminID, readerID, outsiderID} {
		publish("user", strconv.Itoa(id), events.TypeDirectoryUser,
			events.DirectoryUser{UserID: id, Admin: id == adminID, State: events.UserStateActive})
	}
	publish("membership", "6-project-3", events.TypeDirectoryMembership, events.DirectoryMembership{
		UserID:  readerID,
		Scope:   events.MembershipScopeProject,
		ScopeID: eastProject,
		Role:    events.MembershipRoleReader,
	})
	hash, err := natsauth.HashToken(natsauth.TokenAgent, b.token)
	require.NoError(b.t, err)
	publish("agent", strconv.Itoa(eastID), events.TypeDirectoryAgent,
		events.DirectoryAgent{AgentID: eastID, ProjectID: eastProject, TokenHash: hex.EncodeToString(hash[:])})
}

// startService runs a service until the test ends. It returns its addresses when it is ready.
func (b *relayFixture) startService(
	name string, main func(ctx context.Context, ready func(map[string]string)) error,
) map[string]string {
	b.t.Helper()
	ready, ended := make(chan map[string]string, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- main(ctx, func(addrs map[string]string) { ready <- addrs }) }()
	b.t.Cleanup(func() {
		cancel()
		require.NoError(b.t, <-ended, name)
	})
	select {
	case addrs := <-ready:
		return addrs
	case err := <-ended:
		ended <- err
		require.FailNow(b.t, name+" has ended", "%v", err)
	case <-time.After(2 * processTimeout):
		require.FailNow(b.t, name+" is not ready")
	}
	return nil
}

func (b *relayFixture) startRelay() {
	b.t.Helper()
	cfg := relay.DefaultConfig()
	for _, listen := range []*string{&cfg.Ops.Listen, &cfg.Agents.Listen, &cfg.External.Listen, &cfg.Internal.Listen} {
		*listen = "127.0.0.1:0"
	}
	cfg.External.TLS.CertFile, cfg.External.TLS.KeyFile = b.keys.CertFile, b.keys.KeyFile
	cfg.Telemetry.Out = io.Discard
	cfg.NATS.URL = config.URL(b.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(b.dir, natsauth.PrincipalRelay))
	cfg.Internal.SecretFile = config.SecretFile(b.keys.SecretFile)
	cfg.Registry.Lease = processTimeout // a slow machine must not lose the lease
	require.Empty(b.t, cfg.Validate())
	b.relay = b.startService("relay", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return relay.Main(ctx, cfg)
	})
}

// startAgent starts the agent and waits until the relay lists it.
func (b *relayFixture) startAgent() {
	b.t.Helper()
	curve, err := seal.GenerateKey()
	require.NoError(b.t, err)
	seed, err := curve.Seed()
	require.NoError(b.t, err)
	file := filepath.Join(b.dir, "agent.json")
	require.NoError(b.t, natsauth.WriteAgentCredentials(file, natsauth.AgentCredentials{
		ServerURLs: []string{"nats://127.0.0.1:1"},
		Cell:       relayCell,
		AgentID:    eastID,
		Token:      b.token,
		CurveSeed:  seed.Reveal(),
		SealerKey:  curve.Public(),
	}))
	cfg := agent.DefaultConfig()
	cfg.Ops.Listen, cfg.Telemetry.Out = "127.0.0.1:0", io.Discard
	cfg.CredentialsFile, cfg.Pod = file, "lockstep/agent-0"
	cfg.Kubernetes.Kubeconfig = b.cluster()
	cfg.Targets.AllowedAddresses = []string{"127.0.0.1:*"}
	cfg.Relay.URLs = []string{"ws://" + b.relay["agents"]}
	require.Empty(b.t, cfg.Validate())
	b.startService("relay agent", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return agent.Main(ctx, cfg)
	})
	require.Eventually(b.t, func() bool {
		out, _ := b.runs(adminID, "relay", "agents", "east")
		return strings.Contains(out, "lockstep/agent-0")
	}, processTimeout, 10*time.Millisecond)
}

// cluster starts a fake API server that lists two pods. It returns the path of its kubeconfig.
func (b *relayFixture) cluster() string {
	b.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/pods" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		_, _ = io.WriteString(
			w,
			`{"items":[{"metadata":{"namespace":"shop","name":"web-0"}},{"metadata":{"namespace":"shop","name":"`+
				strings.ReplaceAll(r.Header.Get("Impersonate-User"), ":", "-")+`"}}]}`,
		)
	}))
	b.t.Cleanup(server.Close)
	cluster := kubeconfig.NewConfig()
	cluster.Clusters["c"] = &kubeconfig.Cluster{Server: server.URL}
	cluster.Contexts["c"] = &kubeconfig.Context{Cluster: "c"}
	cluster.CurrentContext = "c"
	file := filepath.Join(b.dir, "kubeconfig")
	require.NoError(b.t, clientcmd.WriteToFile(*cluster, file))
	return file
}

// as returns the command line of a user.
func (b *relayFixture) as(user int, args ...string) []string {
	b.t.Helper()
	file := filepath.Join(b.dir, "token-"+strconv.Itoa(user))
	require.NoError(b.t, os.WriteFile(file, []byte(strconv.Itoa(user)+"\n"), 0o600))
	return append(append([]string{"--token-file", file}, b.flags...), args...)
}

// runs executes a command of a user and requires success.
func (b *relayFixture) runs(user int, args ...string) (stdout, stderr string) {
	b.t.Helper()
	code, stdout, stderr := run(b.t, b.as(user, args...)...)
	require.Zero(b.t, code, stderr)
	return stdout, stderr
}

// fails executes a command of a user, requires the exit code, and returns its standard error.
func (b *relayFixture) fails(want, user int, args ...string) string {
	b.t.Helper()
	code, stdout, stderr := run(b.t, b.as(user, args...)...)
	require.Equal(b.t, want, code, stderr)
	require.Empty(b.t, stdout)
	return stderr
}

// fakeStateTokens accepts a user id as the personal access token and issues real access tokens.
type fakeStateTokens struct {
	statev1connect.UnimplementedTokenServiceHandler

	fixture *relayFixture
}

func (p *fakeStateTokens) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	user, err := strconv.ParseInt(strings.TrimPrefix(r.Header().Get("Authorization"), "Bearer "), 10, 64)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("not a user id"))
	}
	now := time.Now()
	expires := now.Add(access.TokenLifetime)
	token, err := access.Sign(p.fixture.private, "k", access.Grant{
		Issuer:    access.Issuer(relayCell),
		Audience:  r.Msg.GetAudience(),
		UserID:    user,
		Admin:     user == adminID,
		IssuedAt:  now,
		ExpiresAt: expires,
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(
		&statev1.ExchangeTokenResponse{AccessToken: token, ExpiresAt: timestamppb.New(expires)},
	), nil
}

// fakeAgents returns the agent east to every caller.
type fakeAgents struct {
	statev1connect.UnimplementedAgentServiceHandler

	targets []events.RelayTarget
}

func (f fakeAgents) east() *statev1.Agent {
	named := &statev1.RelayTargets{}
	for _, target := range f.targets {
		named.Targets = append(named.Targets, &statev1.RelayTarget{Name: target.Name, Address: target.Address})
	}
	return &statev1.Agent{
		Id: eastID, Name: "east", ProjectId: eastProject, Configuration: &statev1.AgentConfiguration{RelayTargets: named},
	}
}

func (f fakeAgents) ListAgents(
	context.Context, *connect.Request[statev1.ListAgentsRequest],
) (*connect.Response[statev1.ListAgentsResponse], error) {
	return connect.NewResponse(&statev1.ListAgentsResponse{Agents: []*statev1.Agent{f.east()}}), nil
}

func (f fakeAgents) GetAgent(
	_ context.Context, r *connect.Request[statev1.GetAgentRequest],
) (*connect.Response[statev1.GetAgentResponse], error) {
	if r.Msg.GetId() != eastID {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such agent"))
	}
	return connect.NewResponse(&statev1.GetAgentResponse{Agent: f.east()}), nil
}
