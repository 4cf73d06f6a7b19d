package signin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/signin/signintest"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const zone = address.Zone("ws.test")

// fixture is a gateway whose workspaces answer with who is signed in, and a real provider.
type fixture struct {
	*testing.T

	signIn *SignIn
	issuer string
	front  *httptest.Server
	people *people

	mu  sync.Mutex
	now time.Time
}

// people are those that Lockstep knows, their tokens, and what has ended.
type people struct {
	*session.Revocations

	mu        sync.Mutex
	ids       map[string]int64
	blocked   map[int64]bool
	tokens    map[string]session.Session
	forgotten []string // ids of workspaces
	created   []string
	used      map[string]bool
	changed   chan struct{}
}

func (p *people) ByLogin(_ context.Context, login string) (int64, error) {
	id, ok := p.ids[login]
	if !ok {
		return 0, errors.New("Lockstep does not know " + login)
	}
	return id, nil
}

func (p *people) Check(s session.Session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked[s.UserID] {
		return errors.New("the person is blocked")
	}
	return nil
}

func (p *people) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *people) block(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked[id] = true
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *people) Revoke(_ context.Context, id string, until time.Time) error {
	p.Add(id, until)
	return nil
}

// codes are those that were used.
type codes struct{ *people }

func (c codes) Use(_ context.Context, code string, _ time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used[code] {
		return errors.New("it was used before")
	}
	c.used[code] = true
	return nil
}

func (p *people) Create(_ context.Context, id int64, name string, expiresAt time.Time) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.created = append(p.created, name)
	return "token of " + strconv.FormatInt(id, 10), nil
}

func (p *people) Forget(_ context.Context, workspace string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgotten = append(p.forgotten, workspace)
	return nil
}

func (p *people) Verify(token string) (session.Session, error) {
	found, ok := p.tokens[token]
	if !ok {
		return found, fault.New(errcode.Unauthenticated, "the access token is refused")
	}
	return found, nil
}

func newFixture(t *testing.T, change func(*SignIn)) *fixture {
	f := &fixture{T: t, now: time.Now()}
	f.people = &people{
		ids: map[string]int64{signintest.Login: 7}, blocked: map[int64]bool{}, used: map[string]bool{},
		tokens:  map[string]session.Session{"good": {UserID: 7, Login: "ada", TokenID: 3}},
		changed: make(chan struct{}), Revocations: session.NewRevocations(time.Now),
	}
	table := access.New()
	table.Set(access.Entry{ID: "id", Name: "hello", OwnerID: 7, Running: true})
	f.issuer = signintest.StartProvider(t, "https://"+zone.SignIn()+pathCallback)
	keys, err := session.ParseKeys(session.GenerateKey())
	require.NoError(t, err)
	f.signIn = New(Config{
		Zone: zone, Lifetime: time.Hour, TokenLifetime: 24 * time.Hour,
		Provider: Provider{
			Issuer: f.issuer, ClientID: signintest.ClientID, ClientSecret: signintest.ClientSecret,
			LoginClaim: "preferred_username",
		},
		WellKnown: WellKnown{Zone: string(zone), SSH: SSH{Address: "ws.test:2222", KnownHosts: []string{"a line"}}},
	}, Dependencies{
		Keys: keys, Users: f.people, Revocations: f.people, Codes: codes{f.people}, Tokens: f.people, Workspaces: table,
		HostKeys: f.people,
		Client:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Logger:   slog.New(slog.DiscardHandler), Now: f.time,
	})
	if change != nil {
		change(f.signIn)
	}
	require.NoError(t, f.signIn.Discover(t.Context()))
	f.front = httptest.NewTLSServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.front.Close)
	return f
}

// serve is how the gateway uses the package.
func (f *fixture) serve(w http.ResponseWriter, r *http.Request) {
	if zone.IsSignIn(r.Host) {
		f.signIn.ServeHTTP(w, r)
		return
	}
	target, ok := zone.Parse(r.Host)
	if !ok {
		http.NotFound(w, r)
		return
	}
	if r.URL.Path == PathSession {
		f.signIn.Accept(w, r, target)
		return
	}
	current, ok := f.signIn.Session(zone.Host(target), r)
	if !ok {
		f.signIn.Begin(w, r, target)
		return
	}
	HideCookies(r.Header)
	_, _ = io.WriteString(w, current.Login+" at "+r.Host+r.URL.RequestURI()+" cookies "+r.Header.Get("Cookie"))
}

func (f *fixture) time() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *fixture) browser() *signintest.Browser {
	return signintest.NewBrowser(f, string(zone), f.front.Listener.Addr().String(), f.issuer)
}
