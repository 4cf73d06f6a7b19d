// Package signintest is a real OpenID Connect provider and a browser for tests.
package signintest

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// A person whom the provider knows, the password of all, and a client.
const (
	Login        = "test-user2"
	Password     = "verysecure"
	ClientID     = "gateway"
	ClientSecret = "of the gateway"
)

// logins are the people whom the provider knows, by their login.
type logins []string

// GetUserByID implements [storage.UserStore].
func (l logins) GetUserByID(login string) *storage.User {
	if !slices.Contains(l, login) {
		return nil
	}
	return &storage.User{ID: login, Username: login, Password: Password}
}

// GetUserByUsername implements [storage.UserStore].
func (l logins) GetUserByUsername(login string) *storage.User { return l.GetUserByID(login) }

// ExampleClientID implements [storage.UserStore].
func (l logins) ExampleClientID() string { return storage.ServiceUserID }

// StartProvider starts the provider of zitadel/oidc, which stores nothing and knows [Login] and others. It returns its
// issuer.
func StartProvider(t testing.TB, redirectURL string, others ...string) (issuer string) {
	server := httptest.NewUnstartedServer(nil)
	issuer = "http://" + server.Listener.Addr().String()
	client := storage.WebClient(ClientID, ClientSecret, redirectURL)
	store := storage.NewStorageWithClients(append(logins{Login}, others...), map[string]*storage.Client{ClientID: client})
	server.Config.Handler = exampleop.SetupServer(
		issuer, store, slog.New(slog.DiscardHandler), false, op.WithAllowInsecure())
	server.Start()
	t.Cleanup(server.Close)
	return issuer
}

// Browser keeps cookies, and reaches every host of a zone at one address.
type Browser struct {
	testing.TB

	Client *http.Client
	issuer string
}

// NewBrowser returns a browser without cookies. It does not verify certificates.
func NewBrowser(t testing.TB, zone, gateway, issuer string) *Browser {
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	var dialer net.Dialer
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the server of a test
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasSuffix(address, "."+zone+":443") {
				address = gateway
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
	return &Browser{t, &http.Client{Jar: jar, Transport: transport}, issuer}
}

// Do sends a request and returns the response with its body.
func (b *Browser) Do(request *http.Request) (*http.Response, string) {
	response, err := b.Client.Do(request)
	require.NoError(b, err)
	defer response.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(response.Body)
	require.NoError(b, err)
	return response, string(body)
}

// Request returns a request with pairs of header names and values.
func (b *Browser) Request(method, address string, headers ...string) *http.Request {
	request, err := http.NewRequestWithContext(b.Context(), method, address, nil)
	require.NoError(b, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return request
}

// Get opens an address.
func (b *Browser) Get(address string) (*http.Response, string) {
	return b.Do(b.Request(http.MethodGet, address))
}

var requestID = regexp.MustCompile(`name="id" value="([^"]+)"`)

// SignInAt opens an address and enters name and password at the provider.
func (b *Browser) SignInAt(address string) (*http.Response, string) {
	response, form := b.Get(address)
	require.Equal(b, b.issuer, response.Request.URL.Scheme+"://"+response.Request.URL.Host, form)
	id := requestID.FindStringSubmatch(form)
	require.NotNil(b, id, form)
	values := url.Values{"username": {Login}, "password": {Password}, "id": {id[1]}}
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.issuer+"/login/username",
		strings.NewReader(values.Encode()))
	require.NoError(b, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.Do(request)
}

// WithoutRedirects returns the same browser that stops at the first redirection.
func (b *Browser) WithoutRedirects() *Browser {
	client := *b.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Browser{b.TB, &client, b.issuer}
}
