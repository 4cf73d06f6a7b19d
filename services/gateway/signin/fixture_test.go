package signin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// people are those that Lockstep knows, and the sessions that have ended.
type people struct {
	mu      sync.Mutex
	ids     map[string]int64
	revoked map[string]bool
}

func (p *people) ByLogin(_ context.Context, login string) (int64, error) {
	id, ok := p.ids[login]
	if !ok {
		return 0, errors.New("Lockstep does not know " + login)
	}
	return id, nil
}

func (p *people) Revoke(_ context.Context, id string, _ time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revoked[id] = true
	return nil
}

func (p *people) Revoked(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.revoked[id]
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, now: time.Now()}
	f.people = &people{ids: map[string]int64{signintest.Login: 7}, revoked: map[string]bool{}}
	f.issuer = signintest.StartProvider(t, "https://"+zone.SignIn()+pathCallback)
	keys, err := session.ParseKeys(session.GenerateKey())
	require.NoError(t, err)
	httpClient := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	f.signIn, err = New(t.Context(), Config{
		Zone: zone, Issuer: f.issuer, ClientID: signintest.ClientID, ClientSecret: signintest.ClientSecret,
		LoginClaim: "preferred_username", Lifetime: time.Hour,
	}, keys, f.people, f.people, httpClient, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	f.signIn.now = func() time.Time {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.now
	}
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

func (f *fixture) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *fixture) browser() *signintest.Browser {
	return signintest.NewBrowser(f, string(zone), f.front.Listener.Addr().String(), f.issuer)
}
