package forward_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A target receives the caller's request without the relay's headers, and with the same framing.
func TestRequestsAreForwarded(t *testing.T) {
	t.Parallel()
	const (
		authorized   = "Host: relay\r\nAuthorization: {token}\r\n"
		forwarded    = `X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]`
		impersonated = `Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]`
	)
	for name, c := range map[string]struct{ request, want string }{
		"plain": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"no path": {
			"GET /agents/7/http/shop HTTP/1.1\r\n" + authorized + "\r\n",
			`GET / relay map[` + forwarded + `]`,
		},
		"a query": {
			"GET /agents/7/http/shop/a/b.c?d=e&f=%20g+h&i&=j HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /a/b.c?d=e&f=%20g+h&i&=j relay map[` + forwarded + `]`,
		},
		"empty query": {
			"GET /agents/7/http/shop/? HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /? relay map[` + forwarded + `]`,
		},
		"two question marks": {
			"GET /agents/7/http/shop/?a?b=c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /?a?b=c relay map[` + forwarded + `]`,
		},
		"semicolons": {
			"GET /agents/7/http/shop/?a=b;c=d&e=%zz HTTP/1.1\r\n" + authorized + "\r\n",
			`GET / relay map[` + forwarded + `]`,
		},
		"escapes": {
			"GET /agents/7/http/shop/a%2Fb%20c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /a%2Fb%20c relay map[` + forwarded + `]`,
		},
		"two slashes": {
			"GET /agents/7/http/shop//a HTTP/1.1\r\n" + authorized + "\r\n",
			`GET //a relay map[` + forwarded + `]`,
		},
		"reserved characters": {
			"GET /agents/7/http/shop/a:b@c=d+e,f~g_h-i.j HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /a:b@c=d+e,f~g_h-i.j relay map[` + forwarded + `]`,
		},
		"HEAD": {
			"HEAD /agents/7/http/shop/case?x HTTP/1.1\r\n" + authorized + "\r\n",
			`HEAD /case?x relay map[` + forwarded + `]`,
		},
		"POST": {
			"POST /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 4\r\n\r\ngood",
			`POST /case relay map[Content-Length:[4] ` + forwarded + `]`,
		},
		"GET with a body": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 4\r\n\r\ngood",
			`GET /case relay map[Content-Length:[4] ` + forwarded + `]`,
		},
		"Content-Length: 0": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 0\r\n\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"fields": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "accept: a/b\r\nCookie: a=b\r\ncookie: c=d\r\n" +
				"X-Empty:\r\nX-Spaces: \t a  b \t\r\nUser-Agent: me\r\nRange: bytes=0-3\r\nIf-None-Match: \"x\"\r\n\r\n",
			`GET /case relay map[Accept:[a/b] Cookie:[a=b c=d] If-None-Match:["x"] Range:[bytes=0-3] User-Agent:[me] X-Empty:[] ` + forwarded + ` X-Spaces:[a  b]]`,
		},
		"a long name": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "X-" + strings.Repeat("Long", 20) + ": a\r\n\r\n",
			`GET /case relay map[` + forwarded +
				` X-Longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong:[a]]`,
		},
		"Authorization for the target": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\nHost: relay:80\r\nLockstep-Authorization: {token}\r\n" +
				"Authorization: Basic x\r\n\r\n",
			`GET /case relay:80 map[Authorization:[Basic x] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay:80] X-Forwarded-Proto:[http]]`,
		},
		"forwarded": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "X-Forwarded-For: 10.9.8.7\r\n" +
				"X-Forwarded-Proto: https\r\nForwarded: for=x\r\n\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"hop-by-hop headers": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\n" +
				"Keep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: Basic x\r\n\r\n",
			`GET /case relay map[Te:[trailers] ` + forwarded + `]`,
		},
		"keep-alive": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: Keep-Alive\r\n\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"Connection: close": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: close\r\n\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"Expect: 100-continue": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Expect: 100-continue\r\n\r\n",
			`GET /case relay map[Expect:[100-continue] ` + forwarded + `]`,
		},
		"impersonation header to an HTTP target": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Impersonate-User: x\r\n\r\n",
			`GET /case relay map[Impersonate-User:[x] ` + forwarded + `]`,
		},
		"absolute request URI": {
			"GET http://relay/agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"connection header": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Lockstep-Connection: 1\r\n\r\n",
			`GET /case relay map[` + forwarded + `]`,
		},
		"traced": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized +
				"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
			`GET /case relay map[Traceparent:[00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01] ` + forwarded + `]`,
		},
		"no caching": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Pragma: no-cache\r\n\r\n",
			`GET /case relay map[Cache-Control:[no-cache] Pragma:[no-cache] ` + forwarded + `]`,
		},
		"Kubernetes list": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/pods?limit=5 HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/namespaces/a/pods?limit=5 kubernetes map[` + impersonated + `]`,
		},
		"Kubernetes get": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/pods/b HTTP/1.1\r\n" + authorized + "Accept: application/json\r\n\r\n",
			`GET /api/v1/namespaces/a/pods/b kubernetes map[Accept:[application/json] ` + impersonated + `]`,
		},
		"no resource": {
			"GET /agents/7/kubernetes/version HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /version kubernetes map[` + impersonated + `]`,
		},
		"Kubernetes root path": {
			"GET /agents/7/kubernetes HTTP/1.1\r\n" + authorized + "\r\n",
			`GET / kubernetes map[` + impersonated + `]`,
		},
		"Kubernetes HEAD": {
			"HEAD /agents/7/kubernetes/api/v1/pods HTTP/1.1\r\n" + authorized + "\r\n",
			`HEAD /api/v1/pods kubernetes map[` + impersonated + `]`,
		},
		"a log": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/pods/b/log?container=c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/namespaces/a/pods/b/log?container=c kubernetes map[` + impersonated + `]`,
		},
		"a proxy": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/services/b/proxy/c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/namespaces/a/services/b/proxy/c kubernetes map[` + impersonated + `]`,
		},
		"Kubernetes, two tokens": {
			"GET /agents/7/kubernetes/api HTTP/1.1\r\nHost: relay\r\nLockstep-Authorization: {token}\r\n" +
				"Authorization: Bearer x\r\nauthorization2: y\r\n\r\n",
			`GET /api kubernetes map[Authorization2:[y] ` + impersonated + `]`,
		},
		"Impersonate-User header": {
			"GET /agents/7/kubernetes/api HTTP/1.1\r\n" + authorized + "impersonate-user: x\r\n\r\n",
			``,
		},
		"X-Remote-User header": {
			"GET /agents/7/kubernetes/api HTTP/1.1\r\n" + authorized + "x-remote-user: x\r\n\r\n",
			`GET /api kubernetes map[` + impersonated + `]`,
		},
		"Kubernetes, watch=0": {
			"GET /agents/7/kubernetes/api/v1/pods?watch=0 HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/pods?watch=0 kubernetes map[` + impersonated + `]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &scriptedTarget{response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"}
			method, _, _ := strings.Cut(c.request, " ")
			if method != http.MethodHead {
				target.response += "good"
			}
			f := newFixture(t, newAgentAt(t, target.start(t)))
			caller := f.connect()
			caller.sendRaw(c.request)
			response, body, _ := caller.readResponse(method)
			require.Equal(t, c.want, target.lastRequest(), "%s", body)
			if c.want != "" {
				require.Equal(t, http.StatusOK, response.StatusCode)
			}
		})
	}
}
