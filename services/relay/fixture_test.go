package relay_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cell         = topology.Cell("local")
	timeout      = time.Minute
	pollInterval = 10 * time.Millisecond
	// shortLease is the lease in tests that let it expire. Other tests use a long one, so that a slow machine does
	// not expire it.
	shortLease = 3 * time.Second
	// IDs of the agent, its project, and users with each role.
	agentID, projectID                 = 7, 3
	admin, reader, developer, outsider = 5, 6, 8, 9
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv(childVariable); cfg != "" {
		child(cfg)
		return
	}
	leaktest.Main(m)
}

// fixture has its own NATS server with least-privilege users, and the events that the state service would publish.
type fixture struct {
	t         *testing.T
	dir       string
	server    *natsd.Server
	state     jetstream.JetStream
	private   ed25519.PrivateKey
	token     string
	published int
	// target is an HTTP server that agents can reach.
	target *httptest.Server
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), token: natsauth.NewToken(natsauth.TokenAgent)}
	report, err := natsauth.Init(f.dir, natsauth.Options{Principals: []natsauth.StaticPrincipal{natsadmin.Principal()}})
	require.NoError(t, err)
	f.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(f.dir, "store")})
	f.state = f.jetStreamAs(natsauth.PrincipalState)
	require.NoError(t, topology.Ensure(natstest.Context(t), f.state, cell, topology.Options{StorageBytes: 1 << 30}))
	require.NoError(t, os.WriteFile(f.secret(), []byte("a secret of more than thirty-two bytes\n"), 0o600))
	f.target = httptest.NewServer(http.HandlerFunc(serveTarget))
	t.Cleanup(f.target.Close)
	f.publishDirectory()
	f.publishAgentConfig(1, "web", f.target.Listener.Addr().String())
	return f
}

// serveTarget echoes the request's method, URI and body.
func serveTarget(w http.ResponseWriter, r *http.Request) {
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

func (f *fixture) secret() string { return filepath.Join(f.dir, "relay.secret") }

func (f *fixture) jetStreamAs(principal string) jetstream.JetStream {
	f.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(f.dir, principal))
	require.NoError(f.t, err)
	return natstest.JetStream(f.t, f.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
}

func (f *fixture) publish(subject, kind string, data any) {
	f.t.Helper()
	f.published++
	e, err := event.New(event.Attributes{
		Type: kind, Source: event.ServiceSource(string(cell), "state"), Subject: "s", ID: fmt.Sprint(f.published),
		Time: time.Now(),
	}, data)
	require.NoError(f.t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(f.t, err)
	_, err = f.state.PublishMsg(f.t.Context(), msg)
	require.NoError(f.t, err)
}

func (f *fixture) publishDirectory() {
	f.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f.t, err)
	f.private = private
	now := time.Now().UTC()
	f.publish(cell.Directory("key", "k"), events.TypeDirectoryKey, events.DirectoryKey{
		KeyID: "k", Algorithm: events.KeyAlgorithmEdDSA, PublicKey: base64.RawURLEncoding.EncodeToString(public),
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	})
	organization := events.DirectoryOrganization{OrganizationID: 1}
	f.publish(cell.Directory("organization", "1"), events.TypeDirectoryOrganization, organization)
	group := events.DirectoryGroup{GroupID: 2, OrganizationID: 1}
	f.publish(cell.Directory("group", "2"), events.TypeDirectoryGroup, group)
	project := events.DirectoryProject{ProjectID: projectID, OrganizationID: 1, GroupID: 2}
	f.publish(cell.Directory("project", "3"), events.TypeDirectoryProject, project)
	for _, id := range []int{admin, reader, developer, outsider} {
		user := events.DirectoryUser{UserID: id, Admin: id == admin, State: events.UserStateActive}
		f.publish(cell.Directory("user", fmt.Sprint(id)), events.TypeDirectoryUser, user)
	}
	f.publishMembership(reader, events.MembershipRoleReader)
	f.publishMembership(developer, events.MembershipRoleDeveloper)
	f.publishAgent(agentID, false)
}

func (f *fixture) publishMembership(user int, role events.MembershipRole) {
	f.t.Helper()
	subject := cell.Directory("membership", fmt.Sprintf("%d-project-%d", user, projectID))
	f.publish(subject, events.TypeDirectoryMembership, events.DirectoryMembership{
		UserID: user, Scope: events.MembershipScopeProject, ScopeID: projectID, Role: role,
	})
}

func (f *fixture) publishAgent(id int, revoked bool) {
	f.t.Helper()
	hash, err := natsauth.HashToken(natsauth.TokenAgent, f.token)
	require.NoError(f.t, err)
	f.publish(cell.Directory("agent", fmt.Sprint(id)), events.TypeDirectoryAgent, events.DirectoryAgent{
		AgentID: id, ProjectID: projectID, TokenHash: hex.EncodeToString(hash[:]), Revoked: revoked,
	})
}

func (f *fixture) publishAgentConfig(revision int, name, address string) {
	f.t.Helper()
	f.publish(cell.ControlConfig(agentID), events.TypeAgentConfig, events.AgentConfig{
		ConfigRevision: revision, FullResyncIntervalMs: 3_600_000, UnschedulablePatienceMs: 1,
		RelayTargets: []events.RelayTarget{{Name: name, Address: address}},
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
		require.FailNow(t, name+" exited", "%v", err)
	case <-time.After(2 * timeout):
		require.FailNow(t, name+" is not ready")
	}
	return r
}

// relayConfig returns the configuration of a test relay: loopback listeners, this NATS URL and secret file.
func relayConfig(natsURL, seedFile, secretFile string) relay.Config {
	cfg := relay.DefaultConfig()
	for _, listen := range []*string{&cfg.Ops.Listen, &cfg.Agents.Listen, &cfg.External.Listen, &cfg.Internal.Listen} {
		*listen = "127.0.0.1:0"
	}
	cfg.Telemetry.Out = io.Discard
	cfg.NATS.URL = config.URL(natsURL)
	cfg.NATS.NKeySeedFile = config.SecretFile(seedFile)
	cfg.Internal.SecretFile = config.SecretFile(secretFile)
	cfg.Registry.Lease, cfg.External.AgentTimeout = timeout, 2*timeout
	return cfg
}

func (f *fixture) relay(change ...func(*relay.Config)) *running {
	f.t.Helper()
	cfg := relayConfig(f.server.ClientURL(), natsauth.SeedFile(f.dir, natsauth.PrincipalRelay), f.secret())
	for _, set := range change {
		set(&cfg)
	}
	require.Empty(f.t, cfg.Validate())
	return run(f.t, "relay", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return relay.Main(ctx, cfg)
	})
}

// replica starts a replica of the agent that dials these relays.
func (f *fixture) replica(relays ...*running) *running {
	f.t.Helper()
	return f.replicaWith(func(cfg *agent.Config) {
		for _, r := range relays {
			cfg.Relay.URLs = append(cfg.Relay.URLs, "ws://"+r.addrs["agents"])
		}
	})
}

func (f *fixture) replicaWith(change func(*agent.Config)) *running {
	f.t.Helper()
	curve, err := nkeys.CreateCurveKeys()
	require.NoError(f.t, err)
	seed, err := curve.Seed()
	require.NoError(f.t, err)
	public, err := curve.PublicKey()
	require.NoError(f.t, err)
	file := filepath.Join(f.t.TempDir(), "agent.json")
	require.NoError(f.t, natsauth.WriteAgentCredentials(file, natsauth.AgentCredentials{
		ServerURLs: []string{"nats://127.0.0.1:1"}, Cell: cell, AgentID: agentID, Token: f.token,
		CurveSeed: string(seed), SealerKey: public,
	}))
	cfg := agent.DefaultConfig()
	cfg.Ops.Listen, cfg.Telemetry.Out = "127.0.0.1:0", io.Discard
	cfg.CredentialsFile, cfg.Pod = file, "lockstep/agent-0"
	cfg.Kubernetes.Enabled = false
	cfg.Targets.AllowedAddresses = []string{"127.0.0.1:*"}
	cfg.Relay.RetryMin, cfg.Relay.RetryMax, cfg.Relay.URLs = 10*time.Millisecond, 100*time.Millisecond, nil
	change(&cfg)
	require.Empty(f.t, cfg.Validate())
	return run(f.t, "relay agent", func(ctx context.Context, ready func(map[string]string)) error {
		cfg.OnReady = ready
		return agent.Main(ctx, cfg)
	})
}

// bearer of an access token of a user.
func (f *fixture) bearer(user int) string {
	f.t.Helper()
	now := time.Now()
	token, err := access.Sign(f.private, "k", access.Grant{
		Issuer: access.Issuer(cell), Audience: []string{"relay"}, UserID: int64(user), Admin: user == admin,
		IssuedAt: now, ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(f.t, err)
	return "Bearer " + token
}

func (f *fixture) request(r *running, user int, method, path, body string) *http.Request {
	f.t.Helper()
	url := "http://" + r.addrs["external"] + path
	request, err := http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body))
	require.NoError(f.t, err)
	request.Header.Set("Authorization", f.bearer(user))
	return request
}

func (f *fixture) client() *http.Client {
	transport := &http.Transport{}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// do sends a request and returns status and body of the response.
func (f *fixture) do(request *http.Request) (int, string) {
	f.t.Helper()
	client := f.client()
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	require.NoError(f.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	return response.StatusCode, string(raw)
}

// connect opens a TCP stream to a target.
func (f *fixture) connect(r *running, user int, target string) (*net.TCPConn, *bufio.Reader, *http.Response) {
	f.t.Helper()
	conn, err := net.Dial("tcp", r.addrs["external"])
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "GET /agents/%d/tcp/%s HTTP/1.1\r\nHost: relay\r\nAuthorization: %s\r\n"+
		"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n", agentID, target, f.bearer(user))
	require.NoError(f.t, err)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(f.t, err)
	return conn.(*net.TCPConn), reader, response
}

// streamOf returns the stream of an event type.
func streamOf(eventType string) string {
	if eventType == events.TypeAuditRequests {
		return topology.StreamAudit
	}
	return topology.StreamAgents
}

// waitForEvent reads the stream of an event type until an event matches.
func (f *fixture) waitForEvent(eventType string, matches func(data []byte) bool) {
	f.t.Helper()
	js := f.jetStreamAs(natsadmin.Name)
	consumer, err := js.OrderedConsumer(f.t.Context(), streamOf(eventType), jetstream.OrderedConsumerConfig{})
	require.NoError(f.t, err)
	ctx, cancel := context.WithTimeout(f.t.Context(), timeout)
	defer cancel()
	messages, err := consumer.Messages()
	require.NoError(f.t, err)
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(f.t, err, "no matching event of type %s", eventType)
		e, err := event.Decode(m.Headers(), m.Data())
		require.NoError(f.t, err)
		if e.Type() == eventType && matches(e.Data()) {
			return
		}
	}
}

// hasMetric reports whether the metrics of a relay contain this line.
func (f *fixture) hasMetric(r *running, line string) bool {
	f.t.Helper()
	client := f.client()
	defer client.CloseIdleConnections()
	response, err := client.Get("http://" + r.addrs["ops"] + "/metrics")
	require.NoError(f.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	return strings.Contains(string(raw), "\n"+line+"\n")
}

// waitForMetrics waits until the metrics of a relay contain these lines.
func (f *fixture) waitForMetrics(r *running, lines ...string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		for _, line := range lines {
			if !f.hasMetric(r, line) {
				return false
			}
		}
		return true
	}, timeout, pollInterval, "%v", lines)
}

// allEvents returns all events of a type.
func allEvents[T any](f *fixture, eventType string) []T {
	f.t.Helper()
	js := f.jetStreamAs(natsadmin.Name)
	consumer, err := js.OrderedConsumer(f.t.Context(), streamOf(eventType), jetstream.OrderedConsumerConfig{})
	require.NoError(f.t, err)
	info, err := consumer.Info(f.t.Context())
	require.NoError(f.t, err)
	messages, err := consumer.Messages()
	require.NoError(f.t, err)
	defer messages.Stop()
	var found []T
	for range info.NumPending {
		m, err := messages.Next(jetstream.NextContext(natstest.Context(f.t)))
		require.NoError(f.t, err)
		e, err := event.Decode(m.Headers(), m.Data())
		require.NoError(f.t, err)
		if e.Type() == eventType {
			var data T
			require.NoError(f.t, json.Unmarshal(e.Data(), &data))
			found = append(found, data)
		}
	}
	return found
}

// connectionOf returns the connection id of a pod.
func (f *fixture) connectionOf(pod string) string {
	f.t.Helper()
	var id string
	f.waitForEvent(events.TypeAgentConnected, func(data []byte) bool {
		var c events.AgentConnected
		require.NoError(f.t, json.Unmarshal(data, &c))
		if c.PodName == pod {
			id = c.ConnectionID
		}
		return id != ""
	})
	return id
}

// get requests a path of the agent's HTTP target.
func (f *fixture) get(r *running, agent int, path string, header ...string) (int, string) {
	f.t.Helper()
	request := f.request(r, developer, http.MethodGet, fmt.Sprintf("/agents/%d/http/web%s", agent, path), "")
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	status, body := f.do(request)
	return status, strings.TrimSpace(body)
}

// sentBytes counts the bytes of large responses that targets have sent.
var sentBytes atomic.Int64

// large responds with size bytes.
func large(w http.ResponseWriter, r *http.Request, size int) {
	if r.URL.Query().Get("length") != "" {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	buffer := make([]byte, 32<<10)
	for size > 0 {
		n, err := w.Write(buffer[:min(size, len(buffer))])
		sentBytes.Add(int64(n))
		if size -= n; err != nil {
			return
		}
	}
}
