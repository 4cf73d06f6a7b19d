package signin

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const workspace = "https://3000--hello.ws.test"

func TestPersonSignsInAndReturns(t *testing.T) {
	f := newFixture(t, nil)
	b := f.browser()
	response, body := b.SignInAt(workspace + "/a/b?c=d")
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	require.Equal(t, "test-user2 at 3000--hello.ws.test/a/b?c=d cookies ", body)

	// Another workspace needs no password, and has a cookie of its own.
	_, body = b.Get("https://80--other.ws.test/")
	require.Equal(t, "test-user2 at 80--other.ws.test/ cookies ", body)
	hosts := map[string]string{}
	for _, host := range []string{"3000--hello", "80--other", "sign-in"} {
		for _, cookie := range b.Client.Jar.Cookies(&url.URL{Scheme: "https", Host: host + ".ws.test", Path: "/"}) {
			require.Equal(t, sessionCookie, cookie.Name, "nothing else is left")
			hosts[cookie.Value] = host
		}
	}
	require.Len(t, hosts, 3, "each cookie is for its host")
	for value, host := range hosts {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		_, ok := f.signIn.Session(host+".ws.test", r)
		require.True(t, ok)
		_, ok = f.signIn.Session("1--thief.ws.test", r)
		require.False(t, ok, "the cookie of another host")
	}
}

func TestCookiesHaveAllAttributes(t *testing.T) {
	f := newFixture(t, nil)
	b := f.browser().WithoutRedirects()
	response, _ := b.Get(workspace + "/")
	for _, step := range []string{"the workspace", "the sign-in host"} {
		require.Equal(t, http.StatusSeeOther, response.StatusCode)
		require.NotEmpty(t, response.Cookies(), step)
		for _, cookie := range response.Cookies() {
			require.True(t, strings.HasPrefix(cookie.Name, cookiePrefix))
			require.True(t, cookie.Secure && cookie.HttpOnly && cookie.SameSite == http.SameSiteLaxMode, cookie)
			require.Empty(t, cookie.Domain, "host-only")
			require.Equal(t, "/", cookie.Path)
		}
		response, _ = b.Get(response.Header.Get("Location"))
	}
	provider, err := url.Parse(f.issuer)
	require.NoError(t, err)
	require.Equal(t, provider.Host, response.Request.URL.Host)
	query := response.Request.URL.Query()
	require.Equal(t, "S256", query.Get("code_challenge_method"))
	require.NotEmpty(t, query.Get("nonce"))
	require.NotEmpty(t, query.Get("state"))
}

func TestSessionEndsByTimeAndBySignOut(t *testing.T) {
	f := newFixture(t, nil)
	b := f.browser()
	b.SignInAt(workspace + "/")
	f.pass(time.Hour)
	response, _ := b.WithoutRedirects().Get(workspace + "/")
	require.Equal(t, http.StatusSeeOther, response.StatusCode)

	b = f.browser()
	b.SignInAt(workspace + "/")
	signOut := func(headers map[string]string) *http.Response {
		request, err := http.NewRequest(http.MethodPost, "https://sign-in.ws.test/sign-out", nil)
		require.NoError(t, err)
		for name, value := range headers {
			request.Header.Set(name, value)
		}
		response, _ := b.Do(request)
		return response
	}
	require.Equal(t, http.StatusForbidden, signOut(map[string]string{"Origin": workspace}).StatusCode)
	require.Equal(t, http.StatusForbidden, signOut(map[string]string{"Sec-Fetch-Site": "same-site"}).StatusCode)
	_, body := b.Get(workspace + "/")
	require.Contains(t, body, "test-user2 at", "a page of a workspace cannot sign people out")
	_, body = b.Get("https://sign-in.ws.test/")
	require.Contains(t, body, "Signed in as test-user2")
	require.Equal(t, http.StatusOK, signOut(map[string]string{"Origin": "https://sign-in.ws.test"}).StatusCode)
	response, _ = b.WithoutRedirects().Get(workspace + "/")
	require.Equal(t, http.StatusSeeOther, response.StatusCode, "on all hosts")
}

func TestUnknownPersonIsRefused(t *testing.T) {
	f := newFixture(t, nil)
	delete(f.people.ids, "test-user2")
	response, body := f.browser().SignInAt(workspace + "/")
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.Contains(t, body, "Lockstep does not know test-user2")
}

// TestNobodySignsAnotherPersonIn: an attacker signs in and sends the victim a link of the own flow.
func TestNobodySignsAnotherPersonIn(t *testing.T) {
	f := newFixture(t, nil)
	attacker, victim := f.browser(), f.browser()
	attacker.SignInAt("https://sign-in.ws.test/")

	response, _ := attacker.WithoutRedirects().Get(workspace + "/")
	response, _ = attacker.WithoutRedirects().Get(response.Header.Get("Location"))
	ticket := response.Header.Get("Location")
	require.Contains(t, ticket, PathSession)
	response, body := victim.Get(ticket)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Contains(t, body, "began in another browser")

	victim.WithoutRedirects().Get(workspace + "/") // the victim has a number, but another one
	response, _ = victim.Get(ticket)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	other := strings.Replace(ticket, "3000--hello", "3000--other", 1)
	response, _ = attacker.Get(other)
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "the ticket of another host")
	f.pass(ticketLifetime + time.Second)
	response, _ = attacker.Get(ticket)
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "an old ticket")
}

func TestCallbackNeedsTheBrowserThatBegan(t *testing.T) {
	f := newFixture(t, nil)
	b := f.browser()
	for _, query := range []string{
		"", "state=x&code=y", "state=ABCDEFGH&code=y", "state=%0a%0dABCDEF", "error=access_denied",
	} {
		response, body := b.Get("https://sign-in.ws.test/callback?" + query)
		require.Equal(t, http.StatusBadRequest, response.StatusCode, query)
		require.Contains(t, body, "began in another browser")
	}
	response, _ := b.WithoutRedirects().Get("https://sign-in.ws.test/authorize")
	provider, err := url.Parse(response.Header.Get("Location"))
	require.NoError(t, err)
	state := provider.Query().Get("state")
	response, _ = f.browser().Get("https://sign-in.ws.test/callback?code=y&state=" + state)
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "another browser")
	response, body := b.WithoutRedirects().Get(
		"https://sign-in.ws.test/callback?error=access_denied&error_description=%3Cscript%3E&state=" + state)
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.Contains(t, body, "access_denied &lt;script&gt;")
	response, _ = b.Get("https://sign-in.ws.test/callback?code=y&state=" + state)
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "a flow ends once")

	response, _ = b.WithoutRedirects().Get("https://sign-in.ws.test/authorize")
	provider, err = url.Parse(response.Header.Get("Location"))
	require.NoError(t, err)
	response, body = b.Get("https://sign-in.ws.test/callback?code=wrong&state=" + provider.Query().Get("state"))
	require.Equal(t, http.StatusBadGateway, response.StatusCode)
	require.Contains(t, body, "answer is not valid")
	require.NotContains(t, body, "wrong")
}

func TestNoOpenRedirection(t *testing.T) {
	f := newFixture(t, nil)
	b := f.browser()
	b.SignInAt("https://sign-in.ws.test/")
	for _, host := range []string{
		"evil.org", "3000--hello.ws.test.evil.org", "3000--hello.ws.test:99", "evil.org/3000--hello.ws.test",
		"sign-in.ws.test", "user@3000--hello.ws.test",
	} {
		response, _ := b.WithoutRedirects().Get("https://sign-in.ws.test/authorize?number=x&host=" + url.QueryEscape(host))
		require.Equal(t, http.StatusBadRequest, response.StatusCode, host)
	}
	// The path that people return to stays on the host.
	_, body := b.Get(workspace + "//evil.org/x")
	require.Equal(t, "test-user2 at 3000--hello.ws.test//evil.org/x cookies ", body)
}

func TestOnlyNavigationsBegin(t *testing.T) {
	f := newFixture(t, nil)
	for name, change := range map[string]func(*http.Request){
		"a form":      func(r *http.Request) { r.Method = http.MethodPost },
		"a script":    func(r *http.Request) { r.Header.Set("Sec-Fetch-Mode", "cors") },
		"a WebSocket": func(r *http.Request) { r.Header.Set("Upgrade", "websocket") },
	} {
		request, err := http.NewRequest(http.MethodGet, workspace+"/", nil)
		require.NoError(t, err)
		change(request)
		response, _ := f.browser().Do(request)
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, name)
		require.Empty(t, response.Cookies())
	}
}

func TestCookiesOfTheGatewayAreHidden(t *testing.T) {
	for before, after := range map[string]string{
		"__Host-lockstep=x":                                   "",
		"a=b; __Host-lockstep=x; c=d":                         "a=b; c=d",
		"__Host-lockstep-return=x;__HOST-LOCKSTEP-flow-AB=y;": "",
		"x__Host-lockstep=1":                                  "x__Host-lockstep=1",
		"quoted=\"1 2\"":                                      "quoted=\"1 2\"",
	} {
		header := http.Header{"Cookie": {before}}
		HideCookies(header)
		require.Equal(t, after, header.Get("Cookie"))
	}
	header := http.Header{"Set-Cookie": {
		"__Host-lockstep=x; Path=/; Secure", "a=b; Domain=ws.test; Path=/; HttpOnly", "c=d; domain = .ws.test", "e=f",
	}}
	FilterSetCookies(header)
	require.Equal(t, []string{"a=b; Path=/; HttpOnly", "c=d", "e=f"}, header["Set-Cookie"])
}
