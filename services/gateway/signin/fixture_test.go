package signin

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/op"

	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	zone     = address.Zone("ws.test")
	login    = "test-user2" // a user of the provider
	password = "verysecure"
)

// fixture is a gateway whose workspaces answer with who is signed in, and a real provider.
type fixture struct {
	*testing.T

	signIn   *SignIn
	provider *httptest.Server
	front    *httptest.Server
	people   *people

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
	f.people = &people{ids: map[string]int64{login: 7}, revoked: map[string]bool{}}
	f.provider = httptest.NewUnstartedServer(nil)
	issuer := "http://" + f.provider.Listener.Addr().String()
	client := storage.WebClient("gateway", "of the gateway", "https://"+zone.SignIn()+pathCallback)
	store := storage.NewStorageWithClients(storage.NewUserStore(issuer), map[string]*storage.Client{"gateway": client})
	f.provider.Config.Handler = exampleop.SetupServer(
		issuer, store, slog.New(slog.DiscardHandler), false, op.WithAllowInsecure())
	f.provider.Start()
	t.Cleanup(f.provider.Close)

	keys, err := session.ParseKeys(session.GenerateKey())
	require.NoError(t, err)
	httpClient := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	f.signIn, err = New(t.Context(), Config{
		Zone: zone, Issuer: issuer, ClientID: "gateway", ClientSecret: "of the gateway", LoginClaim: "preferred_username",
		Lifetime: time.Hour,
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

// browser keeps cookies, and reaches every host of the zone at the gateway.
type browser struct {
	*fixture

	client *http.Client
}

func (f *fixture) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(f, err)
	var dialer net.Dialer
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasSuffix(address, "."+string(zone)+":443") {
				address = f.front.Listener.Addr().String()
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
	return &browser{f, &http.Client{Jar: jar, Transport: transport}}
}

func (b *browser) do(request *http.Request) (*http.Response, string) {
	response, err := b.client.Do(request)
	require.NoError(b, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(b, err)
	return response, string(body)
}

func (b *browser) get(address string) (*http.Response, string) {
	request, err := http.NewRequest(http.MethodGet, address, nil)
	require.NoError(b, err)
	return b.do(request)
}

var requestID = regexp.MustCompile(`name="id" value="([^"]+)"`)

// signInAt opens an address and enters name and password at the provider.
func (b *browser) signInAt(address string) (*http.Response, string) {
	response, form := b.get(address)
	require.Equal(b, b.provider.Listener.Addr().String(), response.Request.URL.Host, form)
	id := requestID.FindStringSubmatch(form)
	require.NotNil(b, id, form)
	request, err := http.NewRequest(http.MethodPost, b.provider.URL+"/login/username",
		strings.NewReader(url.Values{"username": {login}, "password": {password}, "id": {id[1]}}.Encode()))
	require.NoError(b, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.do(request)
}

// withoutRedirects returns the same browser that stops at the first redirection.
func (b *browser) withoutRedirects() *browser {
	client := *b.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &browser{b.fixture, &client}
}
