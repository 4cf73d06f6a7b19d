package proxy_test

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
	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/proxy"
	"lockstep.internal/services/relay/tunnel"
)

const (
	agentID = 7
	soon    = time.Minute
	// Who may do what there.
	reader, developer, admin, stranger = 6, 8, 5, 9
)

// people is a directory.
type people struct {
	mu      sync.Mutex
	changed chan struct{}
	users   map[int64]directory.User
	agents  map[int64]directory.Agent
	roles   map[int64]directory.Role
	key     directory.Key
	// asked is told which user is asked for, where it is there.
	asked func(id int64)
}

func (*people) Ready() bool { return true }

func (p *people) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *people) User(id int64) (directory.User, bool) {
	p.mu.Lock()
	asked := p.asked
	p.mu.Unlock()
	if asked != nil {
		asked(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u, known := p.users[id]
	return u, known
}

func (p *people) Agent(id int64) (directory.Agent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, known := p.agents[id]
	return a, known
}

func (p *people) AgentRole(user, agent int64) directory.Role {
	p.mu.Lock()
	defer p.mu.Unlock()
	if agent != agentID {
		return directory.RoleNone
	}
	return p.roles[user]
}

func (p *people) Key(id string) (directory.Key, bool) { return p.key, id == p.key.ID }

func (p *people) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// records is a trail that can be looked at.
type records struct {
	mu  sync.Mutex
	all []audit.Record
}

func (r *records) publish(_ context.Context, b audit.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, b.Records...)
	return nil
}

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// front is a relay's listener for callers with an agent behind it.
type front struct {
	*bed

	people   *people
	private  ed25519.PrivateKey
	services *auth.Signer
	handler  *proxy.Handler
	server   *httptest.Server
	trail    *records
	publish  func() []audit.Record
	flush    func() // publishes what there is by now
	logs     *journal
}

var shared = []byte("a secret of more than thirty-two bytes")

// stance is what a front is made with.
type stance struct {
	slow         bool // no connection is taken from the server
	secure       bool
	room         int // for records
	idle, header time.Duration
}

// gathering is a listener as the relay's is, below TLS.
type gathering struct{ net.Listener }

func (g gathering) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tunnel.Gather(conn), nil
}

func stand(t *testing.T, b *bed, said ...func(*stance)) *front {
	t.Helper()
	how := stance{idle: soon, header: soon}
	for _, say := range said {
		say(&how)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	f := &front{bed: b, private: private, trail: &records{}, logs: &journal{}}
	f.people = &people{
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
	trail := audit.NewLog(audit.Config{Publish: f.trail.publish, Room: how.room, Logger: slog.New(slog.DiscardHandler)})
	handover := service.NewHandover()
	cfg := proxy.Config{
		Authenticator: proxy.NewAuthenticator(users, services, f.people.Changed, time.Now), Directory: f.people,
		Rules:  []policy.Rule{{Subject: "ci", Agents: []int64{agentID}, Targets: []string{"kubernetes"}, ReadOnly: true}},
		Opener: b, Transport: b.transport, Audit: trail, MaxRequests: 10, MaxRequestsPerCaller: 3, Logger: slog.New(slog.NewTextHandler(f.logs, nil)), Now: time.Now,
		Handover: handover, IdleTimeout: how.idle, ReadHeaderTimeout: how.header,
	}
	if how.slow {
		cfg.Handover = nil
	}
	f.handler = proxy.NewHandler(cfg)
	f.server = httptest.NewUnstartedServer(f.handler)
	handover.Prepare(f.server.Config)
	if how.secure {
		f.server.Listener = gathering{f.server.Listener}
		f.server.StartTLS()
	} else {
		f.server.Start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.handler.Run(ctx) })
	running.Go(func() { _ = handover.Serve(f.server.Config) })
	t.Cleanup(func() {
		cancel()
		f.handler.Drain(ctx)
		f.server.Close()
		_ = f.server.Config.Close()
		running.Wait()
		b.transport.Close()
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

func (f *front) token(user int64) string {
	f.t.Helper()
	now := time.Now()
	token, err := access.Sign(f.private, "k", access.Grant{
		Issuer: access.Issuer("local"), Audience: []string{"relay"}, UserID: user, Admin: user == admin, IssuedAt: now, ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(f.t, err)
	return "Bearer " + token
}

// say sends a request as it is written, with the caller's token, and returns the connection.
func (f *front) say(user int64, request string) (net.Conn, *bufio.Reader) {
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

func (f *front) ask(user int64, method, path string, header http.Header) (*http.Response, string) {
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

// seen is what a target was asked.
type seen struct {
	mu   sync.Mutex
	last *http.Request
}

func (s *seen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.last = r
	s.mu.Unlock()
	w.Header().Set("Keep-Alive", "timeout=5")
	w.Header().Set("Trailer", "Sum")
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "answered")
	w.Header().Set("Sum", "8")
}

func (s *seen) request() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
