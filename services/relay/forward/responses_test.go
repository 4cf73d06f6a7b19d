package forward_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The caller receives the complete response, or an error. Nothing of it reaches the next request.
func TestResponsesAreForwarded(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
	long := strings.Repeat("0123456789abcdef", 10_000)
	for name, c := range map[string]struct {
		response           string
		byteByByte, closes bool
		head               bool // the request is HEAD
		status             int
		body               string
		failed             bool
	}{
		"Content-Length": {response: good, status: 200, body: "good"},
		"large body": {
			response: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long), long), status: 200, body: long,
		},
		"empty body":   {response: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200},
		"byte by byte": {response: good, byteByByte: true, status: 200, body: "good"},
		"chunked": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n4;x=y\r\n day\r\n0\r\n\r\n",
			status:   200, body: "good day",
		},
		"chunked, byte by byte": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", byteByByte: true,
			status: 200, body: "good",
		},
		"large chunk": {
			response: fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long),
			status:   200, body: long,
		},
		"empty chunked body": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200,
		},
		"trailers": {
			response: "HTTP/1.1 200 OK\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n\r\n",
			status:   200, body: "good",
		},
		"undeclared trailers": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\nX: 1\r\nX: 2\r\n\r\n",
			status:   200, body: "good",
		},
		"framing headers as trailers": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nContent-Length: 8\r\n" +
				"Transfer-Encoding: x\r\nHost: y\r\n\r\n",
			status: 200, body: "good",
		},
		"body until close":       {response: "HTTP/1.1 200 OK\r\n\r\ngood", closes: true, status: 200, body: "good"},
		"empty body until close": {response: "HTTP/1.1 200 OK\r\n\r\n", closes: true, status: 200},
		"HTTP/1.0":               {response: "HTTP/1.0 200 OK\r\n\r\ngood", closes: true, status: 200, body: "good"},
		"HTTP/1.0 Content-Length": {
			response: "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good",
		},
		"HEAD":                        {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", head: true, status: 200},
		"HEAD without Content-Length": {response: "HTTP/1.1 200 OK\r\n\r\n", head: true, status: 200},
		"HEAD chunked": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", head: true, status: 200,
		},
		"HEAD with a body":        {response: good, head: true, status: 200},
		"HEAD 204":                {response: "HTTP/1.1 204 No Content\r\n\r\n", head: true, status: 204},
		"HEAD, HTTP/1.0":          {response: "HTTP/1.0 200 OK\r\n\r\n", closes: true, head: true, status: 200},
		"204":                     {response: "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n", status: 204},
		"204 with Content-Length": {response: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n", status: 204},
		"204 with body":           {response: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil", status: 204},
		"204 chunked": {
			response: "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", status: 204,
		},
		"304":                     {response: "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", status: 304},
		"304 with Content-Length": {response: "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", status: 304},
		"1xx before": {
			response: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + good, status: 200,
			body: "good",
		},
		"too many 1xx": {
			response: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9) + good, status: 503,
		},
		"unrequested 101": {
			response: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", status: 503,
		},
		"status 299": {
			response: "HTTP/1.1 299 What\r\nContent-Length: 4\r\n\r\ngood", status: 299, body: "good",
		},
		"status 799": {
			response: "HTTP/1.1 799 What\r\nContent-Length: 4\r\n\r\ngood", status: 799, body: "good",
		},
		"no reason phrase": {
			response: "HTTP/1.1 200\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good",
		},
		"large head": {
			response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" +
				"X-A: " + strings.Repeat("a", 8000) + "\r\nX-B: " + strings.Repeat("b", 80_000) + "\r\n\r\ngood",
			status: 200, body: "good",
		},
		"many fields": {
			response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + strings.Repeat("X-A: b\r\n", 100) + "\r\ngood", status: 200,
			body: "good",
		},
		"head too large": {
			response: "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 1100), status: 503,
		},
		"truncated head":        {response: "HTTP/1.1 200 OK\r\nContent-Len", closes: true, status: 503},
		"truncated status line": {response: "HTTP/1.1 20", closes: true, status: 503},
		"truncated body": {
			response: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\ngood", closes: true, status: 200, body: "good", failed: true,
		},
		"truncated large body": {
			response: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long)+1, long), closes: true,
			status: 200, body: long, failed: true,
		},
		"truncated chunk": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\ngood", closes: true, status: 200, body: "good",
			failed: true,
		},
		"truncated chunks": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n", closes: true, status: 200,
			body: "good", failed: true,
		},
		"truncated trailers": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n", closes: true,
			status: 200, body: "good", failed: true,
		},
		"malformed chunks": {
			response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodxx\r\n0\r\n\r\n", status: 200, body: "good",
			failed: true,
		},
		"two responses": {
			response: good + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", status: 200, body: "good",
		},
		"more than Content-Length": {response: good + "evil", status: 200, body: "good"},
		"chunked and Content-Length": {
			response: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
			status:   200, body: "good",
		},
		"Content-Length twice": {
			response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good",
		},
		"two different Content-Lengths": {
			response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ngood", status: 503,
		},
		"malformed Content-Length": {response: "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\ngood", status: 503},
		"bare line feeds":          {response: "HTTP/1.1 200 OK\nContent-Length: 4\n\ngood", status: 200, body: "good"},
		"folded line": {
			response: "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good",
		},
		"space before colon": {
			response: "HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\ngood", closes: true, status: 200, body: "good",
		},
		"not HTTP": {response: "SSH-2.0-OpenSSH_9\r\n", status: 503},
		"Connection: close": {
			response: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good",
		},
		"hop-by-hop fields": {
			response: "HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nX-End: 2\r\n" +
				"Keep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\ngood",
			status: 200, body: "good",
		},
		"keep-alive": {
			response: "HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\ngood",
			status:   200, body: "good",
		},
		"426": {
			response: "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\n" +
				"Content-Type: a/b\r\n\r\ngood",
			status: 426, body: "good",
		},
		"407": {
			response: "HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Type: a/b\r\nContent-Length: 4\r\n\r\ngood",
			status:   407, body: "good",
		},
		"two cookies": {
			response: "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nContent-Length: 4\r\n\r\ngood", status: 200,
			body: "good",
		},
		"Date and Content-Type": {
			response: "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Type: a/b\r\n" +
				"Content-Length: 4\r\n\r\ngood",
			status: 200, body: "good",
		},
		"empty field": {
			response: "HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good",
		},
		"no response": {closes: true, status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &scriptedTarget{response: c.response, byteByByte: c.byteByByte, closes: c.closes}
			f := newFixture(t, newAgentAt(t, target.start(t)))
			caller := f.connect()
			require.Equal(t, "plain", caller.get("/plain"))
			_ = f.auditRecords()
			request, method := getRequest("/case"), http.MethodGet
			if c.head {
				method = http.MethodHead
				request = method + strings.TrimPrefix(request, http.MethodGet)
			}
			caller.sendRaw(request)
			response, body, failed := caller.readResponse(method)
			require.Equal(t, c.failed, failed)
			record := f.lastRecord()
			require.Equal(t, c.status, record.Status)
			if failed {
				require.NotEmpty(t, record.Error)
				return
			}
			require.Equal(t, c.status, response.StatusCode)
			require.NotEmpty(t, response.Header.Get("Date"))
			for _, hopByHop := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate"} {
				require.Empty(t, response.Header.Get(hopByHop), hopByHop)
			}
			if c.status != http.StatusServiceUnavailable {
				require.Equal(t, c.body, string(body))
				require.EqualValues(t, len(c.body), record.BytesReceived)
			}
			require.False(t, response.Close, "the caller's connection stays open")
			require.Equal(t, "plain", caller.get("/plain"))
		})
	}
}

// FuzzResponses checks that no response of a target reaches another request.
func FuzzResponses(f *testing.F) {
	for _, response := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\ngood",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nETag: x\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n",
	} {
		f.Add(response, false)
		f.Add(response, true)
	}
	f.Fuzz(func(t *testing.T, response string, head bool) {
		target := &scriptedTarget{response: response, closes: true}
		fixture := newFixture(t, newAgentAt(t, target.start(t)))
		caller := fixture.connect()
		request, method := getRequest("/case"), http.MethodGet
		if head {
			method = http.MethodHead
			request = method + strings.TrimPrefix(request, http.MethodGet)
		}
		caller.sendRaw(request)
		if got, _, failed := caller.readResponse(method); !failed && !got.Close {
			require.Equal(t, "plain", caller.get("/plain"))
		}
	})
}
