package origin

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway/address"
)

const (
	zone  = address.Zone("ws.example.com")
	other = "https://3000--other.ws.example.com" // a page of another workspace
)

func target() address.Target { return address.Target{Workspace: "hello", Port: 3000} }

func TestRequestsOfPages(t *testing.T) {
	navigation := map[string]string{"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
	for name, c := range map[string]struct {
		method  string
		headers map[string]string
		want    Decision
	}{
		"a program":            {"POST", nil, Allow},
		"the same page":        {"POST", map[string]string{"Origin": "https://3000--hello.ws.example.com"}, Allow},
		"the same page, GET":   {"GET", map[string]string{"Sec-Fetch-Site": "same-origin"}, Allow},
		"the address bar":      {"GET", map[string]string{"Sec-Fetch-Site": "none"}, Allow},
		"another port":         {"POST", map[string]string{"Origin": "https://8080--hello.ws.example.com"}, AllowShared},
		"another workspace":    {"POST", map[string]string{"Origin": other}, Refuse},
		"the sign-in page":     {"POST", map[string]string{"Origin": "https://sign-in.ws.example.com"}, Refuse},
		"another site":         {"GET", map[string]string{"Origin": "https://evil.org"}, Refuse},
		"without encryption":   {"GET", map[string]string{"Origin": "http://3000--hello.ws.example.com"}, Refuse},
		"at another port":      {"GET", map[string]string{"Origin": "https://3000--hello.ws.example.com:99"}, Refuse},
		"a sandbox":            {"GET", map[string]string{"Origin": "null"}, Refuse},
		"not an origin":        {"GET", map[string]string{"Origin": "https://3000--hello.ws.example.com/x"}, Refuse},
		"an image of another":  {"GET", script("same-site", "no-cors"), Refuse},
		"a script of another":  {"GET", script("cross-site", "cors"), Refuse},
		"a link":               {"GET", with(navigation, "Sec-Fetch-Site", "cross-site"), Allow},
		"a link of another":    {"GET", with(navigation, "Sec-Fetch-Site", "same-site"), Allow},
		"a form of another":    {"POST", with(navigation, "Sec-Fetch-Site", "same-site", "Origin", other), Refuse},
		"a frame":              {"GET", with(navigation, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "iframe"), Refuse},
		"a WebSocket":          {"GET", upgrade(other), Refuse},
		"a WebSocket as link":  {"GET", with(navigation, "Sec-Fetch-Site", "same-site", "Upgrade", "websocket"), Refuse},
		"a WebSocket, shared":  {"GET", upgrade("https://80--hello.ws.example.com"), AllowShared},
		"a link with a method": {"DELETE", with(navigation, "Sec-Fetch-Site", "same-site"), Refuse},
	} {
		t.Run(name, func(t *testing.T) {
			request := httptest.NewRequest(c.method, "https://3000--hello.ws.example.com/", nil)
			for key, value := range c.headers {
				request.Header.Set(key, value)
			}
			require.Equal(t, c.want, Decide(zone, target(), request))
		})
	}
}

// script are the headers of a request by a script or an element of a page.
func script(site, mode string) map[string]string {
	return map[string]string{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
}

func upgrade(origin string) map[string]string {
	return map[string]string{"Upgrade": "websocket", "Origin": origin}
}

func with(headers map[string]string, pairs ...string) map[string]string {
	all := maps.Clone(headers)
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

func TestOriginCountsThePortOfTheGateway(t *testing.T) {
	local := address.Zone("ws.localhost:8443")
	for origin, want := range map[string]Decision{
		"https://3000--hello.ws.localhost:8443": Allow, "https://3000--hello.ws.localhost": Refuse,
	} {
		request := httptest.NewRequest(http.MethodPost, "https://3000--hello.ws.localhost:8443/", nil)
		request.Header.Set("Origin", origin)
		require.Equal(t, want, Decide(local, target(), request), origin)
	}
}

func TestPreflightIsAnswered(t *testing.T) {
	request := httptest.NewRequest(http.MethodOptions, "https://3000--hello.ws.example.com/", nil)
	require.False(t, IsPreflight(request))
	request.Header.Set("Origin", "https://80--hello.ws.example.com")
	request.Header.Set("Access-Control-Request-Method", "PUT")
	request.Header.Set("Access-Control-Request-Headers", "content-type")
	require.True(t, IsPreflight(request))
	answer := httptest.NewRecorder()
	AnswerPreflight(request, answer)
	require.Equal(t, http.StatusNoContent, answer.Code)
	require.Equal(t, http.Header{
		"Access-Control-Allow-Origin":      {"https://80--hello.ws.example.com"},
		"Access-Control-Allow-Credentials": {"true"},
		"Access-Control-Allow-Methods":     {"PUT"},
		"Access-Control-Allow-Headers":     {"content-type"},
		"Access-Control-Max-Age":           {"600"},
		"Vary":                             {"Origin"},
	}, answer.Header())
}
