package forward_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/forward"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/tunnel"
)

const (
	agentID = 7
	timeout = time.Minute
	// Users by role.
	reader, developer, admin, noRole = 6, 8, 5, 9
)

// fakeDirectory is a directory that a test changes.
type fakeDirectory struct {
	mu      sync.Mutex
	changed chan struct{}
	users   map[int64]directory.User
	agents  map[int64]directory.Agent
	roles   map[int64]directory.Role
	key     directory.Key
	// onUser, if set, is called with the id of each user that is read.
	onUser func(id int64)
}

func (*fakeDirectory) Ready() bool { return true }

func (d *fakeDirectory) WhenReady() <-chan struct{} {
	ready := make(chan struct{})
	close(ready)
	return ready
}

func (d *fakeDirectory) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

func (d *fakeDirectory) User(id int64) (directory.User, bool) {
	d.mu.Lock()
	onUser := d.onUser
	d.mu.Unlock()
	if onUser != nil {
		onUser(id)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u, known := d.users[id]
	return u, known
}

func (d *fakeDirectory) Agent(id int64) (directory.Agent, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, known := d.agents[id]
	return a, known
}

func (d *fakeDirectory) AgentRole(user, agent int64) directory.Role {
	d.mu.Lock()
	defer d.mu.Unlock()
	if agent != agentID {
		return directory.RoleNone
	}
	return d.roles[user]
}

func (d *fakeDirectory) Key(id string) (directory.Key, bool) { return d.key, id == d.key.ID }

func (d *fakeDirectory) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

// recordingPublisher keeps the records that were published.
type recordingPublisher struct {
	mu  sync.Mutex
	all []audit.Record
}

func (r *recordingPublisher) publish(_ context.Context, b audit.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, b.Records...)
	return nil
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// fixture is a relay's listener for callers, with an agent behind it.
type fixture struct {
	*agentFixture

	directory *fakeDirectory
	private   ed25519.PrivateKey
	services  *auth.Signer
	handler   *forward.Handler

	authenticator *forward.Authenticator
	server        *httptest.Server
	published     *recordingPublisher
	auditLog      *audit.Log
	logs          *logBuffer

	mu      sync.Mutex
	refused []string // limits
}

func (f *fixture) countRefused(limit string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, limit)
}

// serviceSecret signs the tokens of services.
var serviceSecret = []byte("a secret of more than thirty-two bytes")

// options of a fixture; the zero value has the defaults.
type options struct {
	tls           bool // the relay listens with TLS
	auditCapacity int
	auditBurst    int           // also the records per minute
	writeTimeout  time.Duration // of the server
	// streamLifetime is the maximum lifetime of a request.
	streamLifetime time.Duration
	// requestsPerAgent of one caller
	requestsPerAgent int
}

// coalescingListener is the listener below TLS, as the relay has it.
type coalescingListener struct{ net.Listener }

func (c coalescingListener) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tunnel.Coalesce(conn), nil
}

func newFixture(t *testing.T, agent *agentFixture, set ...options) *fixture {
	t.Helper()
	var opts options
	for _, o := range set {
		opts = o
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	f := &fixture{agentFixture: agent, private: private, published: &recordingPublisher{}, logs: &logBuffer{}}
	f.directory = &fakeDirectory{
		changed: make(chan struct{}),
		key: directory.Key{
			ID: "k", Public: public, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		},
		users: map[int64]directory.User{
			reader: {ID: reader}, developer: {ID: developer}, admin: {ID: admin, Admin: true}, noRole: {ID: noRole},
		},
		agents: map[int64]directory.Agent{agentID: {ID: agentID, ProjectID: 3, Name: "east"}},
		roles:  map[int64]directory.Role{reader: directory.RoleReader, developer: directory.RoleDeveloper},
	}
	users, err := access.NewVerifier(access.Config{Directory: f.directory, Cell: "local", Audience: "relay"})
	require.NoError(t, err)
	secret := auth.Config{Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{serviceSecret}, Lifetime: time.Hour}
	services, err := auth.NewVerifier(secret)
	require.NoError(t, err)
	f.services, err = auth.NewSigner(secret)
	require.NoError(t, err)
	f.auditLog = audit.NewLog(audit.Config{
		Publish: f.published.publish, Capacity: opts.auditCapacity, Burst: opts.auditBurst, PerMinute: opts.auditBurst,
		Logger: slog.New(slog.DiscardHandler),
	})
	f.authenticator = forward.NewAuthenticator(users, services, f.directory.Changed, time.Now)
	f.handler = forward.NewHandler(forward.Config{
		Authenticator: f.authenticator, Directory: f.directory,
		Rules:  []policy.Rule{{Subject: "ci", Agents: []int64{agentID}, Targets: []string{"kubernetes"}, ReadOnly: true}},
		Opener: agent, Transport: agent.transport, Audit: f.auditLog, MaxRequests: 10, MaxRequestsPerCaller: 3,
		MaxRequestsPerAgent: cmp.Or(opts.requestsPerAgent, 3), Refused: f.countRefused,
		Logger: slog.New(slog.NewTextHandler(f.logs, nil)), Now: time.Now, StreamLifetime: opts.streamLifetime,
	})
	f.server = httptest.NewUnstartedServer(f.handler)
	f.server.Config.WriteTimeout = opts.writeTimeout
	if opts.tls {
		f.server.Listener = coalescingListener{f.server.Listener}
		f.server.StartTLS()
	} else {
		f.server.Start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.handler.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		f.handler.Drain(ctx)
		f.server.Close()
		_ = f.server.Config.Close()
		running.Wait()
		agent.transport.Close()
	})
	return f
}

// flushAudit publishes all pending audit records.
func (f *fixture) flushAudit() {
	f.t.Helper()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(f.t, f.auditLog.Run(cancelled, context.Background()))
}

// auditRecords waits until no request is in flight, and returns the records that were added since the last call.
func (f *fixture) auditRecords() []audit.Record {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.handler.Requests() == 0 }, timeout, time.Millisecond)
	f.flushAudit()
	f.published.mu.Lock()
	defer f.published.mu.Unlock()
	all := f.published.all
	f.published.all = nil
	return all
}

func (f *fixture) token(user int64, change ...func(*access.Grant)) string {
	f.t.Helper()
	now := time.Now()
	grant := access.Grant{
		Issuer: access.Issuer("local"), Audience: []string{"relay"}, UserID: user, Admin: user == admin, IssuedAt: now,
		ExpiresAt: now.Add(access.TokenLifetime),
	}
	for _, c := range change {
		c(&grant)
	}
	token, err := access.Sign(f.private, "k", grant)
	require.NoError(f.t, err)
	return "Bearer " + token
}

// sendRaw sends raw request text with the user's token, and returns the connection.
func (f *fixture) sendRaw(user int64, request string) (net.Conn, *bufio.Reader) {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(f.t, conn.SetDeadline(time.Now().Add(timeout)))
	line, rest, _ := strings.Cut(request, "\r\n")
	_, err = io.WriteString(conn, line+"\r\nHost: relay\r\nAuthorization: "+f.token(user)+"\r\n"+rest)
	require.NoError(f.t, err)
	return conn, bufio.NewReader(conn)
}

// request sends a request with the user's token, and returns the response and its body.
func (f *fixture) request(user int64, method, path string, header http.Header) (*http.Response, string) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, nil)
	require.NoError(f.t, err)
	request.Header = header.Clone()
	if request.Header == nil {
		request.Header = http.Header{}
	}
	if request.Header.Get("Authorization") == "" && request.Header.Get("Lockstep-Authorization") == "" {
		request.Header.Set("Authorization", f.token(user))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(f.t, err)
	return response, read(f.t, response)
}

// recordingTarget keeps the last request.
type recordingTarget struct {
	mu   sync.Mutex
	last *http.Request
}

func (r *recordingTarget) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	r.last = request
	r.mu.Unlock()
	w.Header().Set("Keep-Alive", "timeout=5")
	w.Header().Set("Trailer", "Sum")
	_, _ = io.Copy(io.Discard, request.Body)
	_, _ = io.WriteString(w, "response")
	w.Header().Set("Sum", "8")
}

func (r *recordingTarget) lastRequest() *http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
