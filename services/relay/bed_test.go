package relay_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cell = topology.Cell("local")
	soon = time.Minute
	// brief is the lease of relays that are to be found dead. All others have a long one: a busy machine must not kill them.
	brief = 3 * time.Second
	// The agent, its project, and who may do what there.
	agentID, projectID             = 7, 3
	admin, reader, developer, none = 5, 6, 8, 9
)

func TestMain(m *testing.M) {
	if told := os.Getenv(childVariable); told != "" {
		child(told)
		return
	}
	goleak.VerifyTestMain(m)
}

// bed has a NATS of its own whose users have no more rights than they need, and what state would have said there.
type bed struct {
	t       *testing.T
	dir     string
	server  *natsd.Server
	state   jetstream.JetStream
	private ed25519.PrivateKey
	token   string
	said    int
	// shop is what agents can reach.
	shop *httptest.Server
}

func setup(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), token: natsauth.NewToken(natsauth.TokenAgent)}
	report, err := natsauth.Init(b.dir, natsauth.Options{})
	require.NoError(t, err)
	b.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(b.dir, "store")})
	b.state = b.as(natsauth.PrincipalState)
	require.NoError(t, topology.Ensure(natstest.Context(t), b.state, cell, topology.Options{StorageBytes: 1 << 30}))
	require.NoError(t, os.WriteFile(b.secret(), []byte("a secret of more than thirty-two bytes\n"), 0o600))
	b.shop = httptest.NewServer(http.HandlerFunc(shop))
	t.Cleanup(b.shop.Close)
	b.directory()
	b.configure(1, "shop", b.shop.Listener.Addr().String())
	return b
}

// shop says what it was asked.
func shop(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "echo" {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
		return
	}
	if size, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/large/")); err == nil {
		large(w, r, size)
		return
	}
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Trailer", "X-Trailer")
	w.Header().Set("X-Authorization", r.Header.Get("Authorization"))
	_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
	w.Header().Set("X-Trailer", "at the end")
}

func (b *bed) secret() string { return filepath.Join(b.dir, "relay.secret") }

func (b *bed) as(principal string) jetstream.JetStream {
	b.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(b.dir, principal))
	require.NoError(b.t, err)
	return natstest.JetStream(b.t, b.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
}

func (b *bed) publish(subject, kind string, data any) {
	b.t.Helper()
	b.said++
	e, err := event.New(event.Attributes{Type: kind, Source: event.ServiceSource(string(cell), "state"), Subject: "s", ID: fmt.Sprint(b.said), Time: time.Now()}, data)
	require.NoError(b.t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(b.t, err)
	_, err = b.state.PublishMsg(b.t.Context(), msg)
	require.NoError(b.t, err)
}

func (b *bed) directory() {
	b.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(b.t, err)
	b.private = private
	now := time.Now().UTC()
	b.publish(cell.Directory("key", "k"), events.TypeDirectoryKey, events.DirectoryKey{
		KeyID: "k", Algorithm: events.KeyAlgorithmEdDSA, PublicKey: base64.RawURLEncoding.EncodeToString(public), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	})
	b.publish(cell.Directory("organization", "1"), events.TypeDirectoryOrganization, events.DirectoryOrganization{OrganizationID: 1})
	b.publish(cell.Directory("group", "2"), events.TypeDirectoryGroup, events.DirectoryGroup{GroupID: 2, OrganizationID: 1})
	b.publish(cell.Directory("project", "3"), events.TypeDirectoryProject, events.DirectoryProject{ProjectID: projectID, OrganizationID: 1, GroupID: 2})
	for _, id := range []int{admin, reader, developer, none} {
		b.publish(cell.Directory("user", fmt.Sprint(id)), events.TypeDirectoryUser, events.DirectoryUser{UserID: id, Admin: id == admin, State: events.UserStateActive})
	}
	b.member(reader, events.MembershipRoleReader)
	b.member(developer, events.MembershipRoleDeveloper)
	b.agent(agentID, false)
}

func (b *bed) member(user int, role events.MembershipRole) {
	b.t.Helper()
	b.publish(cell.Directory("membership", fmt.Sprintf("%d-project-%d", user, projectID)), events.TypeDirectoryMembership, events.DirectoryMembership{
		UserID: user, Scope: events.MembershipScopeProject, ScopeID: projectID, Role: role,
	})
}

func (b *bed) agent(id int, revoked bool) {
	b.t.Helper()
	hash, err := natsauth.HashToken(natsauth.TokenAgent, b.token)
	require.NoError(b.t, err)
	b.publish(cell.Directory("agent", fmt.Sprint(id)), events.TypeDirectoryAgent, events.DirectoryAgent{
		AgentID: id, ProjectID: projectID, TokenHash: hex.EncodeToString(hash[:]), Revoked: revoked,
	})
}

func (b *bed) configure(revision int, name, address string) {
	b.t.Helper()
	b.publish(cell.ControlConfig(agentID), events.TypeAgentConfig, events.AgentConfig{
		ConfigRevision: revision, FullResyncIntervalMs: 3_600_000, UnschedulablePatienceMs: 1, RelayTargets: []events.RelayTarget{{Name: name, Address: address}},
	})
}

// running is a program that a test has started in this process.
type running struct {
	addrs map[string]string
	stop  func()
}

func run(t *testing.T, name string, main func(ctx context.Context, ready func(map[string]string)) error) *running {
	t.Helper()
	ready, ended := make(chan map[string]string, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- main(ctx, func(addrs map[string]string) { ready <- addrs }) }()
	r := &running{}
	stopped := false
	r.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-ended, name)
		}
	}
	t.Cleanup(r.stop)
	select {
	case r.addrs = <-ready:
	case err := <-ended:
		ended <- err
		require.FailNow(t, name+" has ended", "%v", err)
	case <-time.After(2 * soon):
		require.FailNow(t, name+" is not ready")
	}
	return r
}

// near is what a relay of a test is configured with: it listens on this machine, and knows this NATS and this secret.
func near(natsURL, seedFile, secretFile string) relay.Config {
	cfg := relay.DefaultConfig()
	for _, listen := range []*string{&cfg.Ops.Listen, &cfg.Agents.Listen, &cfg.External.Listen, &cfg.Internal.Listen} {
		*listen = "127.0.0.1:0"
	}
	cfg.Telemetry.Out = io.Discard
	cfg.NATS.URL = config.URL(natsURL)
	cfg.NATS.NKeySeedFile = config.SecretFile(seedFile)
	cfg.Internal.SecretFile = config.SecretFile(secretFile)
	cfg.Registry.Lease, cfg.External.AgentTimeout = soon, 2*soon
	return cfg
}

func (b *bed) relay(change ...func(*relay.Config)) *running {
	b.t.Helper()
	cfg := near(b.server.ClientURL(), natsauth.SeedFile(b.dir, natsauth.PrincipalRelay), b.secret())
	for _, f := range change {
		f(&cfg)
	}
	require.Empty(b.t, cfg.Validate())
	return run(b.t, "relay", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return relay.Main(ctx, cfg)
	})
}

// replica is one of the agent, connected to these relays.
func (b *bed) replica(relays ...*running) *running {
	b.t.Helper()
	return b.replicaWith(func(cfg *agent.Config) {
		for _, r := range relays {
			cfg.Relay.URLs = append(cfg.Relay.URLs, "ws://"+r.addrs["agents"])
		}
	})
}

func (b *bed) replicaWith(change func(*agent.Config)) *running {
	b.t.Helper()
	curve, err := nkeys.CreateCurveKeys()
	require.NoError(b.t, err)
	seed, err := curve.Seed()
	require.NoError(b.t, err)
	public, err := curve.PublicKey()
	require.NoError(b.t, err)
	file := filepath.Join(b.t.TempDir(), "agent.json")
	require.NoError(b.t, natsauth.WriteAgentCredentials(file, natsauth.AgentCredentials{
		ServerURLs: []string{"nats://127.0.0.1:1"}, Cell: cell, AgentID: agentID, Token: b.token, CurveSeed: string(seed), SealerKey: public,
	}))
	cfg := agent.DefaultConfig()
	cfg.Ops.Listen, cfg.Telemetry.Out = "127.0.0.1:0", io.Discard
	cfg.CredentialsFile, cfg.Pod = file, "lockstep/agent-0"
	cfg.Kubernetes.Enabled = false
	cfg.Targets.AllowedAddresses = []string{"127.0.0.1:*"}
	cfg.Relay.RetryMin, cfg.Relay.RetryMax, cfg.Relay.URLs = 10*time.Millisecond, 100*time.Millisecond, nil
	change(&cfg)
	require.Empty(b.t, cfg.Validate())
	return run(b.t, "relay agent", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return agent.Main(ctx, cfg)
	})
}

// bearer of an access token of a user.
func (b *bed) bearer(user int) string {
	b.t.Helper()
	now := time.Now()
	token, err := access.Sign(b.private, "k", access.Grant{
		Issuer: access.Issuer(cell), Audience: []string{"relay"}, UserID: int64(user), Admin: user == admin, IssuedAt: now, ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(b.t, err)
	return "Bearer " + token
}

func (b *bed) request(r *running, user int, method, path, body string) *http.Request {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, "http://"+r.addrs["external"]+path, strings.NewReader(body))
	require.NoError(b.t, err)
	request.Header.Set("Authorization", b.bearer(user))
	return request
}

func (b *bed) client() *http.Client {
	transport := &http.Transport{}
	b.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask sends a request and returns status and body of the answer.
func (b *bed) ask(request *http.Request) (int, string) {
	b.t.Helper()
	client := b.client()
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	return response.StatusCode, string(raw)
}

// connect opens a TCP stream to a target.
func (b *bed) connect(r *running, user int, target string) (*net.TCPConn, *bufio.Reader, *http.Response) {
	b.t.Helper()
	conn, err := net.Dial("tcp", r.addrs["external"])
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "GET /agents/%d/tcp/%s HTTP/1.1\r\nHost: relay\r\nAuthorization: %s\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n", agentID, target, b.bearer(user))
	require.NoError(b.t, err)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(b.t, err)
	return conn.(*net.TCPConn), reader, response
}

// events of the stream AGENTS, as they come, until one is what the test waits for.
func (b *bed) events(kind string, enough func(data []byte) bool) {
	b.t.Helper()
	consumer, err := b.as(natsauth.PrincipalOperator).OrderedConsumer(b.t.Context(), topology.StreamAgents, jetstream.OrderedConsumerConfig{})
	require.NoError(b.t, err)
	ctx, cancel := context.WithTimeout(b.t.Context(), soon)
	defer cancel()
	messages, err := consumer.Messages()
	require.NoError(b.t, err)
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(b.t, err, "an event of type %s that is enough", kind)
		e, err := event.Decode(m.Headers(), m.Data())
		require.NoError(b.t, err)
		if e.Type() == kind && enough(e.Data()) {
			return
		}
	}
}

// metric says whether a relay shows this line.
func (b *bed) metric(r *running, line string) bool {
	b.t.Helper()
	client := b.client()
	defer client.CloseIdleConnections()
	response, err := client.Get("http://" + r.addrs["ops"] + "/metrics")
	require.NoError(b.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	return strings.Contains(string(raw), "\n"+line+"\n")
}
