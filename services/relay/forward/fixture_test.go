package forward_test

import (
	"bufio"
	"bytes"
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
	soon    = time.Minute
	// Users, by what they may do there.
	reader, developer, admin, stranger = 6, 8, 5, 9
)

// fakeDirectory is a directory that a test changes.
type fakeDirectory struct {
	mu      sync.Mutex
	changed chan struct{}
	users   map[int64]directory.User
	agents  map[int64]directory.Agent
	roles   map[int64]directory.Role
	key     directory.Key
	// onUser, if set, is called with each user that is looked up.
	onUser func(id int64)
}

func (*fakeDirectory) Ready() bool { return true }

func (p *fakeDirectory) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *fakeDirectory) User(id int64) (directory.User, bool) {
	p.mu.Lock()
	onUser := p.onUser
	p.mu.Unlock()
	if onUser != nil {
		onUser(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u, known := p.users[id]
	return u, known
}

func (p *fakeDirectory) Agent(id int64) (directory.Agent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, known := p.agents[id]
	return a, known
}

func (p *fakeDirectory) AgentRole(user, agent int64) directory.Role {
	p.mu.Lock()
	defer p.mu.Unlock()
	if agent != agentID {
		return directory.RoleNone
	}
	return p.roles[user]
}

func (p *fakeDirectory) Key(id string) (directory.Key, bool) { return p.key, id == p.key.ID }

func (p *fakeDirectory) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// recordedTrail keeps the records that were published.
type recordedTrail struct {
	mu  sync.Mutex
	all []audit.Record
}

func (r *recordedTrail) publish(_ context.Context, b audit.Batch) error {
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

	people   *fakeDirectory
	private  ed25519.PrivateKey
	services *auth.Signer
	handler  *forward.Handler
	server   *httptest.Server
	trail    *recordedTrail
	publish  func() []audit.Record
	flush    func() // publishes what there is by now
	logs     *logBuffer
}

var shared = []byte("a secret of more than thirty-two bytes")

// options of a fixture; the zero value has the defaults.
type options struct {
	secure bool // the relay listens with TLS
	room   int  // for audit records
	stall  time.Duration
}

// coalescing is a listener below TLS, as the relay has it.
type coalescing struct{ net.Listener }

func (c coalescing) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tunnel.Coalesce(conn), nil
}

func newFixture(t *testing.T, agent *agentFixture, set ...options) *fixture {
	t.Helper()
	var how options
	for _, s := range set {
		how = s
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	f := &fixture{agentFixture: agent, private: private, trail: &recordedTrail{}, logs: &logBuffer{}}
	f.people = &fakeDirectory{
		changed: make(chan struct{}), key: directory.Key{ID: "k", Public: public, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)},
		users:  map[int64]directory.User{reader: {ID: reader}, developer: {ID: developer}, admin: {ID: admin, Admin: true}, stranger: {ID: stranger}},
		agents: map[int64]directory.Agent{agentID: {ID: agentID, ProjectID: 3}},
		roles:  map[int64]directory.Role{reader: directory.RoleReader, developer: directory.RoleDeveloper},
	}
	users, err := access.NewVerifier(access.Config{Directory: f.people, Cell: "local", Audience: "relay"})
	require.NoError(t, err)
	secret := auth.Config{Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{shared}, Lifetime: time.Hour}
	services, err := auth.NewVerifier(secret)
	require.NoError(t, err)
	f.services, err = auth.NewSigner(secret)
	require.NoError(t, err)
	trail := audit.NewLog(audit.Config{Publish: f.trail.publish, Capacity: how.room, Logger: slog.New(slog.DiscardHandler)})
	f.handler = forward.NewHandler(forward.Config{
		Authenticator: forward.NewAuthenticator(users, services, f.people.Changed, time.Now), Directory: f.people,
		Rules:  []policy.Rule{{Subject: "ci", Agents: []int64{agentID}, Targets: []string{"kubernetes"}, ReadOnly: true}},
		Opener: agent, Transport: agent.transport, Audit: trail, MaxRequests: 10, MaxRequestsPerCaller: 3, Logger: slog.New(slog.NewTextHandler(f.logs, nil)), Now: time.Now,
		StallTimeout: how.stall,
	})
	f.server = httptest.NewUnstartedServer(f.handler)
	if how.secure {
		f.server.Listener = coalescing{f.server.Listener}
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
	f.flush = func() {
		ended, end := context.WithCancel(context.Background())
		end()
		require.NoError(t, trail.Run(ended, context.Background()))
	}
	f.publish = func() []audit.Record {
		require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, soon, time.Millisecond)
		f.flush()
		f.trail.mu.Lock()
		defer f.trail.mu.Unlock()
		all := f.trail.all
		f.trail.all = nil
		return all
	}
	return f
}

func (f *fixture) token(user int64) string {
	f.t.Helper()
	now := time.Now()
	token, err := access.Sign(f.private, "k", access.Grant{
		Issuer: access.Issuer("local"), Audience: []string{"relay"}, UserID: user, Admin: user == admin, IssuedAt: now, ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(f.t, err)
	return "Bearer " + token
}

// send sends a request as it is written, with the caller's token, and returns the connection.
func (f *fixture) send(user int64, request string) (net.Conn, *bufio.Reader) {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(f.t, conn.SetDeadline(time.Now().Add(soon)))
	line, rest, _ := strings.Cut(request, "\r\n")
	_, err = io.WriteString(conn, line+"\r\nHost: relay\r\nAuthorization: "+f.token(user)+"\r\n"+rest)
	require.NoError(f.t, err)
	return conn, bufio.NewReader(conn)
}

func (f *fixture) ask(user int64, method, path string, header http.Header) (*http.Response, string) {
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

// lastRequest is a target that keeps the last request.
type lastRequest struct {
	mu   sync.Mutex
	last *http.Request
}

func (s *lastRequest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.last = r
	s.mu.Unlock()
	w.Header().Set("Keep-Alive", "timeout=5")
	w.Header().Set("Trailer", "Sum")
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "answered")
	w.Header().Set("Sum", "8")
}

func (s *lastRequest) request() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
