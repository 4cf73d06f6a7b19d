package signin

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/signin/signintest"
)

const (
	signInHost = "https://sign-in.ws.test"
	verifier   = "the verifier of the command line, which it keeps"
)

func (f *fixture) cliQuery() url.Values {
	return url.Values{"port": {"40123"}, "challenge": {hash(verifier)}, "state": {"STATE"}, "name": {"laptop"}}
}

var hidden = regexp.MustCompile(`name="([^"]+)" value="([^"]*)"`)

// submit presses the button of a page.
func (f *fixture) submit(b *signintest.Browser, path, page string, headers ...string) *http.Response {
	f.Helper()
	values := url.Values{}
	for _, field := range hidden.FindAllStringSubmatch(page, -1) {
		values.Set(field[1], field[2])
	}
	request := b.Request(http.MethodPost, signInHost+path, append([]string{
		"Content-Type", "application/x-www-form-urlencoded", "Origin", signInHost,
	}, headers...)...)
	request.Body = io.NopCloser(strings.NewReader(values.Encode()))
	response, _ := b.WithoutRedirects().Do(request)
	return response
}

// post sends JSON as the command line does.
func (f *fixture) post(path string, body any, headers ...string) (*http.Response, map[string]any) {
	f.Helper()
	raw, err := json.Marshal(body)
	require.NoError(f, err)
	b := f.browser()
	request := b.Request(http.MethodPost, signInHost+path, headers...)
	request.Body = io.NopCloser(strings.NewReader(string(raw)))
	response, text := b.Do(request)
	answer := map[string]any{}
	require.NoError(f, json.Unmarshal([]byte(text), &answer), text)
	return response, answer
}

// code signs in and lets the command line act.
func (f *fixture) code() string {
	f.Helper()
	b := f.browser()
	_, page := b.SignInAt(signInHost + "/cli?" + f.cliQuery().Encode())
	require.Contains(f, page, "Let the command line on laptop act as test-user2?")
	response := f.submit(b, "/cli", page)
	require.Equal(f, http.StatusSeeOther, response.StatusCode)
	to, err := url.Parse(response.Header.Get("Location"))
	require.NoError(f, err)
	require.Equal(f, "http://127.0.0.1:40123/callback", to.Scheme+"://"+to.Host+to.Path)
	require.Equal(f, "STATE", to.Query().Get("state"))
	return to.Query().Get("code")
}

func TestCommandLineGetsATokenOnce(t *testing.T) {
	f := newFixture(t, nil)
	code := f.code()
	response, _ := f.post("/cli/token", map[string]string{"code": code, "verifier": "of another program"})
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	response, answer := f.post("/cli/token", map[string]string{"code": code, "verifier": verifier})
	require.Equal(t, http.StatusOK, response.StatusCode, answer)
	require.Equal(t, "token of 7", answer["token"])
	expires, err := time.Parse(time.RFC3339, answer["expires_at"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), expires, time.Minute)
	require.Equal(t, []string{"command line on laptop"}, f.people.created)
	response, _ = f.post("/cli/token", map[string]string{"code": code, "verifier": verifier})
	require.Equal(t, http.StatusUnauthorized, response.StatusCode, "once")
	require.Len(t, f.people.created, 1)

	old := f.code()
	f.pass(codeLifetime + time.Second)
	response, _ = f.post("/cli/token", map[string]string{"code": old, "verifier": verifier})
	require.Equal(t, http.StatusUnauthorized, response.StatusCode, "too old")
	blocked := f.code()
	f.people.block(7)
	response, _ = f.post("/cli/token", map[string]string{"code": blocked, "verifier": verifier})
	require.NotEqual(t, http.StatusOK, response.StatusCode, "blocked meanwhile")
	response, _ = f.post("/cli/token", "no object")
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
}

func TestCommandLineIsAllowedByItsOwnPageOnly(t *testing.T) {
	f := newFixture(t, nil)
	b := f.browser()
	_, page := b.SignInAt(signInHost + "/cli?" + f.cliQuery().Encode())
	for _, headers := range [][]string{
		{"Origin", workspace}, {"Origin", "https://evil.org"}, {"Sec-Fetch-Site", "same-site"},
	} {
		require.Equal(t, http.StatusForbidden, f.submit(b, "/cli", page, headers...).StatusCode, headers)
	}
	require.Equal(t, http.StatusBadRequest, f.submit(f.browser(), "/cli", page).StatusCode, "nobody has signed in")
	for name, value := range map[string]string{
		"port": "80", "challenge": "short", "state": "a b", "name": "<script>",
	} {
		query := f.cliQuery()
		query.Set(name, value)
		response, _ := b.Get(signInHost + "/cli?" + query.Encode())
		require.Equal(t, http.StatusBadRequest, response.StatusCode, name)
	}
}

func (f *fixture) link(port int) string {
	f.Helper()
	response, answer := f.post("/cli/session", map[string]any{"workspace": "hello", "port": port},
		"Authorization", "Bearer good")
	require.Equal(f, http.StatusOK, response.StatusCode, answer)
	return answer["url"].(string)
}

func withoutProvider(s *SignIn) { s.Provider = Provider{} }

func TestLinkOfTheCommandLineSignsInOnceAfterAQuestion(t *testing.T) {
	f := newFixture(t, withoutProvider)
	b := f.browser()
	response, body := b.Get(workspace + "/")
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	require.Contains(t, body, "lockstep ws open NAME")

	to := f.link(3000)
	_, page := b.Get(to)
	require.Contains(t, page, "Sign in as ada")
	require.Empty(t, b.Client.Jar.Cookies(b.Request(http.MethodGet, signInHost+"/").URL), "not before the button")
	require.Equal(t, http.StatusForbidden, f.submit(b, "/cli/open", page, "Origin", workspace).StatusCode)
	response = f.submit(b, "/cli/open", page)
	require.Equal(t, http.StatusSeeOther, response.StatusCode)
	require.Equal(t, workspace+"/", response.Header.Get("Location"))
	_, body = b.Get(workspace + "/")
	require.Equal(t, "ada at 3000--hello.ws.test/ cookies ", body)

	require.Equal(t, http.StatusBadRequest, f.submit(f.browser(), "/cli/open", page).StatusCode, "once")
	_, page = f.browser().Get(f.link(0))
	response = f.submit(f.browser(), "/cli/open", page)
	require.Equal(t, "https://22--hello.ws.test/", response.Header.Get("Location"), "the terminal")
	old := f.link(0)
	f.pass(codeLifetime + time.Second)
	response, body = f.browser().Get(old)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Contains(t, body, "run lockstep ws open again")
}

func TestLinkNeedsATokenAndAWorkspace(t *testing.T) {
	f := newFixture(t, nil)
	body := map[string]any{"workspace": "hello", "port": 3000}
	for _, header := range []string{"Bearer bad", "Basic good", ""} {
		response, _ := f.post("/cli/session", body, "Authorization", header)
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, header)
	}
	for _, c := range []struct {
		workspace string
		port      int
		status    int
	}{
		{"other", 3000, http.StatusNotFound},
		{"hello.evil.org", 3000, http.StatusBadRequest},
		{"", 3000, http.StatusBadRequest},
		{"hello", 70000, http.StatusBadRequest},
		{"hello", -1, http.StatusBadRequest},
	} {
		response, answer := f.post("/cli/session", map[string]any{"workspace": c.workspace, "port": c.port},
			"Authorization", "Bearer good")
		require.Equal(t, c.status, response.StatusCode, answer)
	}
}

func TestSessionOfATokenEndsWithTheToken(t *testing.T) {
	f := newFixture(t, nil)
	current := session.Session{ID: "a", UserID: 7, TokenID: 3, ExpiresAt: time.Now().Add(time.Hour)}
	// ended returns why the session has ended after an action.
	ended := func(action func()) error {
		ctx, release := f.signIn.While(t.Context(), current)
		defer release()
		action()
		<-ctx.Done()
		require.ErrorAs(t, context.Cause(ctx), &EndedError{})
		return context.Cause(ctx)
	}
	require.ErrorContains(t, ended(func() { f.people.block(7) }), "blocked")
	f.people.blocked = map[int64]bool{}
	require.ErrorIs(t, ended(func() {
		require.NoError(t, f.people.Revoke(t.Context(), "a", current.ExpiresAt))
	}), ErrSignedOut)
	current.ID, current.ExpiresAt = "b", time.Now()
	require.ErrorIs(t, ended(func() {}), ErrExpired)
}

func TestEverybodyMayKnowWhereTheGatewayIs(t *testing.T) {
	f := newFixture(t, nil)
	response, body := f.browser().Get(signInHost + "/.well-known/lockstep")
	require.Equal(t, "application/json", response.Header.Get("Content-Type"))
	require.JSONEq(t, `{"zone":"ws.test","ssh":{"address":"ws.test:2222","known_hosts":["a line"]}}`, body)
}

func TestProviderThatIsDownIsExplained(t *testing.T) {
	f := newFixture(t, nil)
	f.signIn.provider.Store(nil)
	response, body := f.browser().Get(workspace + "/")
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.Contains(t, body, "the identity provider does not answer")
	f.signIn.Provider.Issuer = "http://127.0.0.1:1"
	require.ErrorContains(t, f.signIn.Discover(t.Context()), "http://127.0.0.1:1")
}
