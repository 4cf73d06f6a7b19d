package registry_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth"
	_ "github.com/distribution/distribution/v3/registry/auth/token" // the verifier of a real registry
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/registry"
)

type fixture struct {
	handler http.Handler
	token   string
	claims  jobtoken.Claims
	rights  registry.Rights
	public  ed25519.PublicKey
	// real is the access controller of a registry that trusts the keys of the cell.
	real auth.AccessController
}

// Registry implements [registry.Jobs].
func (f *fixture) Registry(_ context.Context, token string) (jobtoken.Claims, registry.Rights, error) {
	if token != f.token {
		return jobtoken.Claims{}, registry.Rights{}, fault.New(errcode.Unauthenticated, "the job does not run")
	}
	return f.claims, f.rights, nil
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	now := time.Now()
	f := &fixture{public: public, rights: registry.Rights{Path: "g/demo", Pull: true, Push: true}, claims: jobtoken.Claims{
		ID: "a", JobID: 7, ProjectID: 3, OrganizationID: 1, Cell: "one", IssuedAt: now, ExpiresAt: now.Add(time.Hour),
		Scopes: []jobtoken.Scope{jobtoken.ScopeRegistryPull, jobtoken.ScopeRegistryPush},
	}}
	f.token, err = jobtoken.Sign("key1", private, f.claims)
	require.NoError(t, err)
	f.handler = registry.NewHandler(registry.Config{
		Jobs: f, Issuer: "lockstep", Service: "registry.example.com", Now: time.Now,
		Key: func() (string, ed25519.PrivateKey) { return "key1", private }, Logger: slog.New(slog.DiscardHandler),
	})
	keys, err := json.Marshal(jobtoken.KeySet{{ID: "key1", Public: public}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keys, 0o600))
	f.real, err = auth.GetAccessController("token", map[string]any{
		"realm": "https://lockstep.example.com/jwt/auth", "issuer": "lockstep", "service": "registry.example.com",
		"jwks": file,
	})
	require.NoError(t, err)
	return f
}

// ask sends a request as a client of the registry does.
func (f *fixture) ask(t *testing.T, user, token, service string, scopes ...string) *httptest.ResponseRecorder {
	t.Helper()
	query := url.Values{"service": {service}, "scope": scopes}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/jwt/auth?"+query.Encode(), http.NoBody)
	if user != "" {
		r.SetBasicAuth(user, token)
	}
	recorder := httptest.NewRecorder()
	f.handler.ServeHTTP(recorder, r)
	return recorder
}

type answer struct {
	Token       string    `json:"token"`
	AccessToken string    `json:"access_token"`
	ExpiresIn   int       `json:"expires_in"`
	IssuedAt    time.Time `json:"issued_at"`
}

func (f *fixture) granted(t *testing.T, scopes ...string) answer {
	t.Helper()
	recorder := f.ask(t, registry.Username, f.token, "registry.example.com", scopes...)
	require.Equal(t, http.StatusOK, recorder.Code, recorder.Body.String())
	require.Equal(t, "no-store", recorder.Header().Get("Cache-Control"))
	var a answer
	require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &a))
	require.Equal(t, a.Token, a.AccessToken)
	return a
}

// authorized asks the verifier of a real registry.
func (f *fixture) authorized(t *testing.T, token, name string, actions ...string) error {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	var wanted []auth.Access
	for _, action := range actions {
		wanted = append(wanted, auth.Access{Resource: auth.Resource{Type: "repository", Name: name}, Action: action})
	}
	_, err := f.real.Authorized(r, wanted...)
	return err
}

func TestRegistryAcceptsTokensOfJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.granted(t, "repository:g/demo/web:pull,push", "repository:g/other:pull")
	require.Equal(t, 300, a.ExpiresIn)
	require.WithinDuration(t, time.Now(), a.IssuedAt, time.Minute)
	require.NoError(t, f.authorized(t, a.Token, "g/demo/web", "pull", "push"))
	require.Error(t, f.authorized(t, a.Token, "g/demo/web", "delete"))
	require.Error(t, f.authorized(t, a.Token, "g/other", "pull"))
	require.Error(t, f.authorized(t, a.Token[:len(a.Token)-2], "g/demo/web", "pull"))

	// A login asks for nothing and gets a token.
	login := f.granted(t)
	require.NoError(t, f.authorized(t, login.Token, ""))
	require.Error(t, f.authorized(t, login.Token, "g/demo", "pull"))
}

func TestTokenPermitsWhatTheJobMay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.claims.Scopes = []jobtoken.Scope{jobtoken.ScopeRegistryPull, jobtoken.ScopeTrace}
	a := f.granted(t, "repository:g/demo:pull,push")
	require.NoError(t, f.authorized(t, a.Token, "g/demo", "pull"))
	require.Error(t, f.authorized(t, a.Token, "g/demo", "push"))
	f.rights.Pull = false // by the project
	require.Error(t, f.authorized(t, f.granted(t, "repository:g/demo:pull").Token, "g/demo", "pull"))
}

func TestTokenEndsWithTheJobToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.claims.ExpiresAt = time.Now().Add(90 * time.Second)
	require.LessOrEqual(t, f.granted(t).ExpiresIn, 90)
	f.claims.ExpiresAt = time.Now()
	recorder := f.ask(t, registry.Username, f.token, "registry.example.com")
	require.Equal(t, http.StatusUnauthorized, recorder.Code)
}

// TestKindsOfTokensAreNotConfused is about tokens that the same key has signed.
func TestKindsOfTokensAreNotConfused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	verifier := jobtoken.NewVerifier(func(topology.Cell, string) (ed25519.PublicKey, bool) { return f.public, true }, nil)
	_, err := verifier.Verify(f.token)
	require.NoError(t, err)
	_, err = verifier.Verify(jobtoken.Prefix + f.granted(t, "repository:g/demo:pull").Token)
	require.Error(t, err)
	require.Error(t, f.authorized(t, strings.TrimPrefix(f.token, jobtoken.Prefix), ""))
}

func TestOnlyRunningJobsGetTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const service = "registry.example.com"
	long := jobtoken.Prefix + strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		answer *httptest.ResponseRecorder
		status int
		code   string
	}{
		"no login":      {f.ask(t, "", "", service), 401, "unauthenticated"},
		"other user":    {f.ask(t, "root", f.token, service), 401, "unauthenticated"},
		"other token":   {f.ask(t, registry.Username, f.token+"x", service), 401, "unauthenticated"},
		"no job token":  {f.ask(t, registry.Username, "glrt-x", service), 401, "unauthenticated"},
		"long token":    {f.ask(t, registry.Username, long, service), 401, "unauthenticated"},
		"other service": {f.ask(t, registry.Username, f.token, "other"), 400, "invalid_argument"},
		"invalid scope": {f.ask(t, registry.Username, f.token, service, "repository:../x:pull"), 400, "invalid_argument"},
		"many scopes":   {f.ask(t, registry.Username, f.token, service, make([]string, 17)...), 400, "invalid_argument"},
	} {
		require.Equal(t, test.status, test.answer.Code, name)
		require.Contains(t, test.answer.Body.String(), `{"code":"`+test.code+`"`, name)
		require.NotContains(t, test.answer.Body.String(), f.token, name)
		require.Equal(t, test.status == 401, test.answer.Header().Get("WWW-Authenticate") != "", name)
	}
}
