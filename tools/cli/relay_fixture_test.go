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
	// The agent east of project 3, its administrator, and somebody who may only look.
	eastID, eastProject   = 7, 3
	relayAdmin, relayEyes = 5, 6
	// relayStranger is a user who has nothing to do with it.
	relayStranger = 9
)

// relayFixture is a real relay and a real relay agent in a system in which state and the cluster are
// played.
type relayFixture struct {
	t       *testing.T
	dir     string
	server  *natsd.Server
	state   jetstream.JetStream
	private ed25519.PrivateKey
	token   string // the agent's
	said    int
	keys    stack.RelayKeys
	relay   map[string]string // its addresses
	flags   []string
}

// newRelayFixture has the relay run. Who wants the agent to be there starts it.
func newRelayFixture(t *testing.T, targets ...events.RelayTarget) *relayFixture {
	t.Helper()
	b := &relayFixture{t: t, dir: t.TempDir(), token: natsauth.NewToken(natsauth.TokenAgent)}
	report, err := natsauth.Init(b.dir, natsauth.Options{})
	require.NoError(t, err)
	b.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(b.dir, "store")})
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(b.dir, natsauth.PrincipalState))
	require.NoError(t, err)
	b.state = natstest.JetStream(
		t,
		b.server,
		key,
		natsgo.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalState)),
	)
	require.NoError(
		t,
		topology.Ensure(natstest.Context(t), b.state, relayCell, topology.Options{StorageBytes: 1 << 30}),
	)
	b.publishDirectory()
	b.publish(relayCell.ControlConfig(eastID), events.TypeAgentConfig, events.AgentConfig{
		ConfigRevision: 1, FullResyncIntervalMs: 3_600_000, UnschedulablePatienceMs: 1, RelayTargets: targets,
	})
	b.keys, _, err = stack.InitRelay(filepath.Join(b.dir, "relay"))
	require.NoError(t, err)
	b.startRelay()
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewTokenServiceHandler(&playedTokens{fixture: b}))
	mux.Handle(statev1connect.NewAgentServiceHandler(playedAgents{}))
	state := httptest.NewServer(mux)
	t.Cleanup(func() {
		closeIdle()
		state.Close()
	})
	b.flags = []string{
		"--server",
		state.URL,
		"--relay-server",
		"https://" + b.relay["external"],
		"--relay-ca-file",
		b.keys.CertFile,
	}
	return b
}

func (b *relayFixture) publish(subject, kind string, data any) {
	b.t.Helper()
	b.said++
	e, err := event.New(event.Attributes{
		Type:    kind,
		Source:  event.ServiceSource(string(relayCell), "state"),
		Subject: "s",
		ID:      strconv.Itoa(b.said),
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
	tell := func(kind, id, of string, data any) { b.publish(relayCell.Directory(kind, id), of, data) }
	tell("key", "k", events.TypeDirectoryKey, events.DirectoryKey{
		KeyID:     "k",
		Algorithm: events.KeyAlgorithmEdDSA,
		PublicKey: base64.RawURLEncoding.EncodeToString(public),
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(time.Hour),
	})
	tell("organization", "1", events.TypeDirectoryOrganization, events.DirectoryOrganization{OrganizationID: 1})
	tell("group", "2", events.TypeDirectoryGroup, events.DirectoryGroup{GroupID: 2, OrganizationID: 1})
	tell(
		"project",
		"3",
		events.TypeDirectoryProject,
		events.DirectoryProject{ProjectID: eastProject, OrganizationID: 1, GroupID: 2},
	)
	for _, id := range []int{relayAdmin, relayEyes, relayStranger} {
		tell(
			"user",
			strconv.Itoa(id),
			events.TypeDirectoryUser,
			events.DirectoryUser{UserID: id, Admin: id == relayAdmin, State: events.UserStateActive},
		)
	}
	tell("membership", "6-project-3", events.TypeDirectoryMembership, events.DirectoryMembership{
		UserID:  relayEyes,
		Scope:   events.MembershipScopeProject,
		ScopeID: eastProject,
		Role:    events.MembershipRoleReader,
	})
	hash, err := natsauth.HashToken(natsauth.TokenAgent, b.token)
	require.NoError(b.t, err)
	tell(
		"agent",
		strconv.Itoa(eastID),
		events.TypeDirectoryAgent,
		events.DirectoryAgent{AgentID: eastID, ProjectID: eastProject, TokenHash: hex.EncodeToString(hash[:])},
	)
}

// begin runs a service until the test ends, and gives its addresses when it is ready.
func (b *relayFixture) begin(
	name string,
	main func(ctx context.Context, ready func(map[string]string)) error,
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
	case <-time.After(2 * soon):
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
	cfg.Registry.Lease = soon // a busy machine is no relay that is lost
	require.Empty(b.t, cfg.Validate())
	b.relay = b.begin("relay", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return relay.Main(ctx, cfg)
	})
}

// startAgent has the agent connect, and waits until the relay says so.
func (b *relayFixture) startAgent() {
	b.t.Helper()
	curve, err := seal.GenerateKey()
	require.NoError(b.t, err)
	seed, err := curve.Seed()
	require.NoError(b.t, err)
	file := filepath.Join(b.dir, "agent.json")
	require.NoError(b.t, natsauth.WriteAgentCredentials(file, natsauth.AgentCredentials{
		ServerURLs: []string{
			"nats://127.0.0.1:1",
		},
		Cell:      relayCell,
		AgentID:   eastID,
		Token:     b.token,
		CurveSeed: seed.Reveal(),
		SealerKey: curve.Public(),
	}))
	cfg := agent.DefaultConfig()
	cfg.Ops.Listen, cfg.Telemetry.Out = "127.0.0.1:0", io.Discard
	cfg.CredentialsFile, cfg.Pod = file, "lockstep/agent-0"
	cfg.Kubernetes.Kubeconfig = b.cluster()
	cfg.Targets.AllowedAddresses = []string{"127.0.0.1:*"}
	cfg.Relay.URLs = []string{"ws://" + b.relay["agents"]}
	require.Empty(b.t, cfg.Validate())
	b.begin("relay agent", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return agent.Main(ctx, cfg)
	})
	require.Eventually(b.t, func() bool {
		out, _ := b.runs(relayAdmin, "relay", "agents", "east")
		return strings.Contains(out, "lockstep/agent-0")
	}, soon, 10*time.Millisecond)
}

// cluster is one with two pods, of whose API server only this is played.
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
	described := kubeconfig.NewConfig()
	described.Clusters["c"] = &kubeconfig.Cluster{Server: server.URL}
	described.Contexts["c"] = &kubeconfig.Context{Cluster: "c"}
	described.CurrentContext = "c"
	file := filepath.Join(b.dir, "kubeconfig")
	require.NoError(b.t, clientcmd.WriteToFile(*described, file))
	return file
}

// as is a user's command line.
func (b *relayFixture) as(user int, args ...string) []string {
	b.t.Helper()
	file := filepath.Join(b.dir, "token-"+strconv.Itoa(user))
	require.NoError(b.t, os.WriteFile(file, []byte(strconv.Itoa(user)+"\n"), 0o600))
	return append(append([]string{"--token-file", file}, b.flags...), args...)
}

// runs executes a user's command, which succeeds.
func (b *relayFixture) runs(user int, args ...string) (stdout, stderr string) {
	b.t.Helper()
	code, stdout, stderr := run(b.t, b.as(user, args...)...)
	require.Zero(b.t, code, stderr)
	return stdout, stderr
}

// fails executes a user's command, which ends with the exit code.
func (b *relayFixture) fails(want, user int, args ...string) string {
	b.t.Helper()
	code, stdout, stderr := run(b.t, b.as(user, args...)...)
	require.Equal(b.t, want, code, stderr)
	require.Empty(b.t, stdout)
	return stderr
}

// playedTokens takes a user's id for the personal access token, and gives real access tokens.
type playedTokens struct {
	statev1connect.UnimplementedTokenServiceHandler

	fixture *relayFixture
}

func (p *playedTokens) ExchangeToken(
	_ context.Context,
	r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	user, err := strconv.ParseInt(strings.TrimPrefix(r.Header().Get("Authorization"), "Bearer "), 10, 64)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("nobody"))
	}
	now := time.Now()
	expires := now.Add(access.TokenLifetime)
	token, err := access.Sign(p.fixture.private, "k", access.Grant{
		Issuer: access.Issuer(
			relayCell,
		),
		Audience:  r.Msg.GetAudience(),
		UserID:    user,
		Admin:     user == relayAdmin,
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

// playedAgents are the agent east, for everybody.
type playedAgents struct {
	statev1connect.UnimplementedAgentServiceHandler
}

func east() *statev1.Agent { return &statev1.Agent{Id: eastID, Name: "east", ProjectId: eastProject} }

func (playedAgents) ListAgents(
	context.Context,
	*connect.Request[statev1.ListAgentsRequest],
) (*connect.Response[statev1.ListAgentsResponse], error) {
	return connect.NewResponse(&statev1.ListAgentsResponse{Agents: []*statev1.Agent{east()}}), nil
}

func (playedAgents) GetAgent(
	_ context.Context,
	r *connect.Request[statev1.GetAgentRequest],
) (*connect.Response[statev1.GetAgentResponse], error) {
	if r.Msg.GetId() != eastID {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such agent"))
	}
	return connect.NewResponse(&statev1.GetAgentResponse{Agent: east()}), nil
}
