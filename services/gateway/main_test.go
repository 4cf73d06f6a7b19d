package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/signin/signintest"
)

const (
	signInHost = "https://sign-in.ws.test"
	hello      = "https://3000--hello.ws.test"
)

// TestPersonSignsInStartsTheWorkspaceAndSignsOut is the way of a person with a browser.
func TestPersonSignsInStartsTheWorkspaceAndSignsOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.config()
	cfg.SignIn.Issuer = signintest.StartProvider(t, signInHost+"/callback")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(signintest.ClientSecret), 0o600))
	cfg.SignIn.ClientID, cfg.SignIn.ClientSecretFile = signintest.ClientID, config.SecretFile(secret)
	require.Empty(t, cfg.Validate())
	r := f.start(cfg)
	f.workspace(func(w *events.AccessWorkspace) { w.ActualState = events.ActualStateStopped })
	b := r.browser(cfg.SignIn.Issuer)
	response, body := b.SignInAt(hello + "/")
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, body)
	require.Contains(t, body, `<strong id="state">stopped</strong>`)
	response, body = b.WithoutRedirects().Do(b.Request(http.MethodPost, hello+"/.lockstep/start", "Origin", hello))
	require.Equal(t, http.StatusSeeOther, response.StatusCode, body)
	require.Equal(t, []string{id}, f.started)

	response, _ = b.Do(b.Request(http.MethodPost, signInHost+"/sign-out", "Origin", signInHost))
	require.Equal(t, http.StatusOK, response.StatusCode)
	response, _ = b.WithoutRedirects().Get(hello + "/")
	require.Equal(t, http.StatusSeeOther, response.StatusCode)
	require.Contains(t, response.Header.Get("Location"), signInHost+"/authorize")
}

func TestSignOutAtOneReplicaCountsAtAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.start(f.config()), f.start(f.config())
	f.workspace(nil)
	first := one.browser("")
	one.openLink(first)
	second := two.browser("")
	second.Client.Jar = first.Client.Jar
	require.Eventually(t, func() bool {
		_, body := second.Get(signInHost + "/")
		return strings.Contains(body, "Signed in as user-9")
	}, soon, time.Millisecond)
	cookies := first.Client.Jar.Cookies(&url.URL{Scheme: "https", Host: "sign-in.ws.test", Path: "/"})
	one.browser("").Do(withCookies(first, first.Request(http.MethodPost, signInHost+"/sign-out"), cookies))
	require.Eventually(t, func() bool {
		stolen := two.browser("") // the cookie is kept
		_, body := stolen.Do(withCookies(stolen, stolen.Request(http.MethodGet, signInHost+"/"), cookies))
		return strings.Contains(body, "Sign in with the command line")
	}, soon, time.Millisecond)
}

func withCookies(_ *signintest.Browser, request *http.Request, cookies []*http.Cookie) *http.Request {
	for _, c := range cookies {
		request.AddCookie(c)
	}
	return request
}

var codeField = regexp.MustCompile(`name="code" value="([^"]+)"`)

// openLink signs a browser in with an access token.
func (r *running) openLink(b *signintest.Browser) {
	r.t.Helper()
	token, err := r.accessToken(owner, []string{"gateway"}, libaccess.ScopeAdmin)
	require.NoError(r.t, err)
	var answer struct {
		URL string `json:"url"`
	}
	require.Eventually(r.t, func() bool {
		request := b.Request(http.MethodPost, signInHost+"/cli/session", "Authorization", "Bearer "+token)
		request.Body = io.NopCloser(strings.NewReader(`{"workspace":"hello","port":3000}`))
		response, body := b.Do(request)
		return response.StatusCode == http.StatusOK && json.Unmarshal([]byte(body), &answer) == nil
	}, soon, 10*time.Millisecond)
	_, page := b.Get(answer.URL)
	code := codeField.FindStringSubmatch(page)
	require.NotNil(r.t, code, page)
	request := b.Request(http.MethodPost, signInHost+"/cli/open", "Origin", signInHost,
		"Content-Type", "application/x-www-form-urlencoded")
	request.Body = io.NopCloser(strings.NewReader(url.Values{"code": {code[1]}}.Encode()))
	response, body := b.WithoutRedirects().Do(request)
	require.Equal(r.t, http.StatusSeeOther, response.StatusCode, body)
}

func TestTokensOfOtherServicesScopesAndRevokedOnesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.start(f.config())
	f.workspace(nil)
	b := r.browser("")
	post := func(token string) int {
		request := b.Request(http.MethodPost, signInHost+"/cli/session", "Authorization", "Bearer "+token)
		request.Body = io.NopCloser(strings.NewReader(`{"workspace":"hello"}`))
		response, _ := b.Do(request)
		return response.StatusCode
	}
	sign := func(audience string, scope libaccess.Scope) string {
		token, err := f.accessToken(owner, []string{audience}, scope)
		require.NoError(t, err)
		return token
	}
	good := sign("gateway", libaccess.ScopeWrite)
	require.Eventually(t, func() bool { return post(good) == http.StatusOK }, soon, 10*time.Millisecond)
	require.Equal(t, http.StatusUnauthorized, post(sign("deploys", libaccess.ScopeAdmin)))
	require.Equal(t, http.StatusForbidden, post(sign("gateway", libaccess.ScopeRead)))
	require.Equal(t, http.StatusUnauthorized, post(""))
	f.person(events.DirectoryUser{State: events.UserStateActive, RevokedTokens: []int{tokenID}})
	require.Eventually(t, func() bool { return post(good) == http.StatusUnauthorized }, soon, 10*time.Millisecond)
}

func output(t *testing.T, client *ssh.Client) string {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close()
	text, err := session.CombinedOutput("echo in the workspace")
	require.NoError(t, err, "%s", text)
	return string(text)
}

// TestSSHByKeyAndByTokenEndsLive is the way of a person with SSH: by a registered key, and by a personal access token.
func TestSSHByKeyAndByTokenEndsLive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	agent := f.startAgent()
	cfg := f.config()
	cfg.Workspaces.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "hello.ws.svc:60022" {
			return nil, errors.New("the Service of the workspace has another name")
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, agent)
	}
	r := f.start(cfg)
	signer, key := f.newSigner()
	f.workspace(nil)
	var byKey *ssh.Client
	require.Eventually(t, func() bool {
		var err error
		byKey, err = r.dial(ssh.PublicKeys(signer))
		return err == nil
	}, soon, 10*time.Millisecond)
	require.Equal(t, "in the workspace\n", output(t, byKey))
	byToken, err := r.dial(ssh.Password(personal))
	require.NoError(t, err)
	require.Equal(t, "in the workspace\n", output(t, byToken))
	_, err = r.dial(ssh.Password("lsp_wrong"))
	require.ErrorContains(t, err, "unable to authenticate")

	stream, err := f.js.Stream(t.Context(), topology.StreamActivity)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := stream.GetLastMsgForSubject(t.Context(), cell.Activity(id))
		return err == nil
	}, soon, 10*time.Millisecond)

	f.person(events.DirectoryUser{State: events.UserStateActive, RevokedTokens: []int{tokenID}})
	require.Error(t, byToken.Wait(), "the token was revoked")
	require.Equal(t, "in the workspace\n", output(t, byKey))
	key.Deleted = true
	f.publish(cell.AccessSSHKey(key.Fingerprint), key)
	require.Error(t, byKey.Wait(), "the key was removed")
}

func TestLoadBalancersMustSendTheProxyProtocolAndOthersMustNot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.config()
	cfg.SSH.TrustedProxies = []string{"127.0.0.0/8"}
	trusting := f.start(cfg)
	cfg = f.config()
	cfg.SSH.TrustedProxies = []string{"10.0.0.0/8"}
	distrusting := f.start(cfg)
	for name, c := range map[string]struct {
		r      *running
		header string
		want   bool
	}{
		"a load balancer":                    {trusting, "PROXY TCP4 203.0.113.9 127.0.0.1 1 2\r\n", true},
		"a load balancer without the header": {trusting, "SSH-2.0-client\r\n", false},
		"a client that pretends":             {distrusting, "PROXY TCP4 203.0.113.9 127.0.0.1 1 2\r\n", false},
		"a client":                           {distrusting, "SSH-2.0-client\r\n", true},
	} {
		conn, err := net.Dial("tcp", c.r.addresses["ssh"])
		require.NoError(t, err)
		_, err = io.WriteString(conn, c.header)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(soon)))
		answer := make([]byte, len("SSH-2.0-Lockstep"))
		_, err = io.ReadFull(conn, answer)
		require.Equal(t, c.want, err == nil && string(answer) == "SSH-2.0-Lockstep", name)
		require.NoError(t, conn.Close())
	}
}

func TestGatewayIsKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.start(f.config())
	_, body := r.browser("").Get(signInHost + "/.well-known/lockstep")
	var known struct {
		Zone string `json:"zone"`
		SSH  struct {
			Address    string   `json:"address"`
			KnownHosts []string `json:"known_hosts"`
		} `json:"ssh"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &known))
	require.Equal(t, "ws.test", known.Zone)
	require.Equal(t, "ws.test:2222", known.SSH.Address)
	require.Len(t, known.SSH.KnownHosts, 1)
	require.Regexp(t, `^\[ws\.test\]:2222 ssh-ed25519 AAAA`, known.SSH.KnownHosts[0])
}

func TestLastCopiesRemainInForceWithoutNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.start(f.config())
	f.server.Down()
	require.Eventually(t, func() bool {
		response, err := http.Get("http://" + r.addresses["ops"] + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		report, err := io.ReadAll(response.Body)
		return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(report), "[!!] nats")
	}, soon, 10*time.Millisecond)
	response, _ := r.browser("").Get(signInHost + "/.well-known/lockstep")
	require.Equal(t, http.StatusOK, response.StatusCode)
}

func TestInvalidConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	var keys []string
	for _, err := range cfg.Validate() {
		keys = append(keys, strings.Fields(err.Error())[0])
	}
	require.Len(t, keys, 5, keys) // the zone and the keys have no default
	f := newFixture(t)
	for name, change := range map[string]func(*gateway.Config){
		"a zone":         func(c *gateway.Config) { c.Zone = "127.0.0.1" },
		"a network":      func(c *gateway.Config) { c.Web.TrustedProxies = []string{"10.0.0.1"} },
		"a body":         func(c *gateway.Config) { c.Web.MaxBody = 1 },
		"a host key":     func(c *gateway.Config) { c.SSH.HostKeyFile = c.SignIn.KeysFile },
		"a cookie key":   func(c *gateway.Config) { c.SignIn.KeysFile = c.SSH.HostKeyFile },
		"an issuer":      func(c *gateway.Config) { c.SignIn.Issuer = "https://sso.example" },
		"a person's key": func(c *gateway.Config) { c.SignIn.PersonKeyFile = c.SignIn.KeysFile },
		"a state":        func(c *gateway.Config) { c.State.URL = "state" },
		"a cell":         func(c *gateway.Config) { c.Cell.Name = "a.b" },
		"a mode":         func(c *gateway.Config) { c.Workspaces.Mode = "proxy" },
		"no effect":      func(c *gateway.Config) { c.Relay.URL = "https://relay.example" },
		"no token": func(c *gateway.Config) {
			c.Workspaces.Mode, c.Relay.URL = gateway.ModeTunnel, "https://relay.example"
		},
		"a relay": func(c *gateway.Config) {
			c.Workspaces.Mode, c.Relay.URL = gateway.ModeTunnel, "wss://relay.example"
			c.Relay.TokenFile = c.SignIn.KeysFile
		},
	} {
		cfg := f.config()
		change(&cfg)
		require.Len(t, cfg.Validate(), 1, name)
	}
	cfg = f.config()
	cfg.SSH.MaxConnections, cfg.SSH.Handshake, cfg.SSH.FailureRate = 0, 0, 0
	require.Len(t, cfg.SSH.Validate(), 3)
	cfg.SignIn.Lifetime, cfg.SignIn.TokenLifetime = 25*time.Hour, 0
	require.Len(t, cfg.SignIn.Validate(), 2)
}

func TestServiceEndsWithoutItsKey(t *testing.T) {
	t.Parallel()
	cfg := newFixture(t).config()
	cfg.NATS.NKeySeedFile = config.SecretFile(filepath.Join(t.TempDir(), "missing.seed"))
	require.ErrorContains(t, gateway.Main(t.Context(), cfg), "connect to NATS")
}
