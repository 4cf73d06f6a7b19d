package forward_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// scriptedTarget sends a fixed response to every request, except to /free, and keeps the last request.
type scriptedTarget struct {
	response   string
	byteByByte bool
	closes     bool // closes the connection after the response

	mu   sync.Mutex
	last string
}

func (s *scriptedTarget) start(t *testing.T) string { return served(t, s.serve) }

func (s *scriptedTarget) serve(conn net.Conn) {
	var head bytes.Buffer
	reader := bufio.NewReader(conn)
	for {
		head.Reset()
		line := ""
		for line != "\r\n" {
			var err error
			if line, err = reader.ReadString('\n'); err != nil {
				return
			}
			head.WriteString(line)
		}
		request, err := http.ReadRequest(bufio.NewReader(io.MultiReader(&head, reader)))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(reader, max(request.ContentLength, 0)))
		if request.URL.Path == "/free" {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfree")
			continue
		}
		s.mu.Lock()
		s.last = fmt.Sprintf("%s %s %s %v", request.Method, request.RequestURI, request.Host, request.Header)
		s.mu.Unlock()
		step := len(s.response)
		if s.byteByByte {
			step = 1
		}
		for at := 0; at < len(s.response); at += step {
			if _, err := io.WriteString(conn, s.response[at:at+step]); err != nil {
				return
			}
		}
		if s.closes {
			return
		}
	}
}

func (s *scriptedTarget) lastRequest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// A response is passed on whole, or its caller sees that it is not. Nothing of it reaches the next request.
func TestResponsesArePassedOn(t *testing.T) {
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
		"Content-Length":                {response: good, status: 200, body: "good"},
		"large body":                    {response: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long), long), status: 200, body: long},
		"empty body":                    {response: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200},
		"byte by byte":                  {response: good, byteByByte: true, status: 200, body: "good"},
		"chunked":                       {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n4;x=y\r\n day\r\n0\r\n\r\n", status: 200, body: "good day"},
		"chunked, byte by byte":         {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", byteByByte: true, status: 200, body: "good"},
		"large chunk":                   {response: fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long), status: 200, body: long},
		"no chunk":                      {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200},
		"trailers":                      {response: "HTTP/1.1 200 OK\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n\r\n", status: 200, body: "good"},
		"undeclared trailers":           {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\nX: 1\r\nX: 2\r\n\r\n", status: 200, body: "good"},
		"framing headers as trailers":   {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nContent-Length: 8\r\nTransfer-Encoding: x\r\nHost: y\r\n\r\n", status: 200, body: "good"},
		"until the end":                 {response: "HTTP/1.1 200 OK\r\n\r\ngood", closes: true, status: 200, body: "good"},
		"empty, until the end":          {response: "HTTP/1.1 200 OK\r\n\r\n", closes: true, status: 200},
		"HTTP/1.0":                      {response: "HTTP/1.0 200 OK\r\n\r\ngood", closes: true, status: 200, body: "good"},
		"HTTP/1.0 Content-Length":       {response: "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"HEAD":                          {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", head: true, status: 200},
		"HEAD without Content-Length":   {response: "HTTP/1.1 200 OK\r\n\r\n", head: true, status: 200},
		"HEAD chunked":                  {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", head: true, status: 200},
		"HEAD with a body":              {response: good, head: true, status: 200},
		"HEAD 204":                      {response: "HTTP/1.1 204 No Content\r\n\r\n", head: true, status: 204},
		"HEAD, HTTP/1.0":                {response: "HTTP/1.0 200 OK\r\n\r\n", closes: true, head: true, status: 200},
		"204":                           {response: "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n", status: 204},
		"204 with Content-Length":       {response: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n", status: 204},
		"204 with body":                 {response: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil", status: 204},
		"204 chunked":                   {response: "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", status: 204},
		"304":                           {response: "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", status: 304},
		"304 with Content-Length":       {response: "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", status: 304},
		"1xx before":                    {response: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + good, status: 200, body: "good"},
		"too many 1xx":                  {response: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9) + good, status: 503},
		"unrequested 101":               {response: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", status: 503},
		"status 299":                    {response: "HTTP/1.1 299 What\r\nContent-Length: 4\r\n\r\ngood", status: 299, body: "good"},
		"status 799":                    {response: "HTTP/1.1 799 What\r\nContent-Length: 4\r\n\r\ngood", status: 799, body: "good"},
		"no reason phrase":              {response: "HTTP/1.1 200\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"large head":                    {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: " + strings.Repeat("a", 8000) + "\r\nX-B: " + strings.Repeat("b", 80_000) + "\r\n\r\ngood", status: 200, body: "good"},
		"many fields":                   {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + strings.Repeat("X-A: b\r\n", 100) + "\r\ngood", status: 200, body: "good"},
		"head too large":                {response: "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 1100), status: 503},
		"truncated head":                {response: "HTTP/1.1 200 OK\r\nContent-Len", closes: true, status: 503},
		"truncated status line":         {response: "HTTP/1.1 20", closes: true, status: 503},
		"truncated body":                {response: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\ngood", closes: true, status: 200, body: "good", failed: true},
		"truncated large body":          {response: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long)+1, long), closes: true, status: 200, body: long, failed: true},
		"truncated chunk":               {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\ngood", closes: true, status: 200, body: "good", failed: true},
		"truncated chunks":              {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n", closes: true, status: 200, body: "good", failed: true},
		"truncated trailers":            {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n", closes: true, status: 200, body: "good", failed: true},
		"malformed chunks":              {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodxx\r\n0\r\n\r\n", status: 200, body: "good", failed: true},
		"two responses":                 {response: good + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", status: 200, body: "good"},
		"more than Content-Length":      {response: good + "evil", status: 200, body: "good"},
		"chunked and Content-Length":    {response: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", status: 200, body: "good"},
		"Content-Length twice":          {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"two different Content-Lengths": {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ngood", status: 503},
		"malformed Content-Length":      {response: "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\ngood", status: 503},
		"bare line feeds":               {response: "HTTP/1.1 200 OK\nContent-Length: 4\n\ngood", status: 200, body: "good"},
		"folded line":                   {response: "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"space before colon":            {response: "HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\ngood", closes: true, status: 200, body: "good"},
		"not HTTP":                      {response: "SSH-2.0-OpenSSH_9\r\n", status: 503},
		"Connection: close":             {response: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"hop-by-hop fields":             {response: "HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nX-End: 2\r\nKeep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"keep-alive":                    {response: "HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"426":                           {response: "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\nContent-Type: a/b\r\n\r\ngood", status: 426, body: "good"},
		"407":                           {response: "HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Type: a/b\r\nContent-Length: 4\r\n\r\ngood", status: 407, body: "good"},
		"two cookies":                   {response: "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"Date and Content-Type":         {response: "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Type: a/b\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"empty field":                   {response: "HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 4\r\n\r\ngood", status: 200, body: "good"},
		"no response":                   {closes: true, status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &scriptedTarget{response: c.response, byteByByte: c.byteByByte, closes: c.closes}
			f := newFixture(t, newAgentAt(t, target.start(t)))
			caller := f.connect()
			require.Equal(t, "free", caller.get("/free"))
			_ = f.publish()
			request, method := getRequest("/case"), http.MethodGet
			if c.head {
				method = http.MethodHead
				request = method + strings.TrimPrefix(request, http.MethodGet)
			}
			caller.send(request)
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
			require.Equal(t, "free", caller.get("/free"))
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
		caller.send(request)
		if got, _, failed := caller.readResponse(method); !failed && !got.Close {
			require.Equal(t, "free", caller.get("/free"))
		}
	})
}

// A target receives the caller's request without what is for the relay, and nothing that frames it differently.
func TestRequestsArePassedOn(t *testing.T) {
	t.Parallel()
	const authorized = "Host: relay\r\nAuthorization: {token}\r\n"
	for name, c := range map[string]struct{ request, want string }{
		"plain": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"no path": {
			"GET /agents/7/http/shop HTTP/1.1\r\n" + authorized + "\r\n",
			`GET / relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"a query": {
			"GET /agents/7/http/shop/a/b.c?d=e&f=%20g+h&i&=j HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /a/b.c?d=e&f=%20g+h&i&=j relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"no query, but asked": {
			"GET /agents/7/http/shop/? HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /? relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"two questions": {
			"GET /agents/7/http/shop/?a?b=c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /?a?b=c relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"semicolons": {
			"GET /agents/7/http/shop/?a=b;c=d&e=%zz HTTP/1.1\r\n" + authorized + "\r\n",
			`GET / relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"escapes": {
			"GET /agents/7/http/shop/a%2Fb%20c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /a%2Fb%20c relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"two slashes": {
			"GET /agents/7/http/shop//a HTTP/1.1\r\n" + authorized + "\r\n",
			`GET //a relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"signs": {
			"GET /agents/7/http/shop/a:b@c=d+e,f~g_h-i.j HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /a:b@c=d+e,f~g_h-i.j relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"HEAD": {
			"HEAD /agents/7/http/shop/case?x HTTP/1.1\r\n" + authorized + "\r\n",
			`HEAD /case?x relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"POST": {
			"POST /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 4\r\n\r\ngood",
			`POST /case relay map[Content-Length:[4] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"GET with a body": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 4\r\n\r\ngood",
			`GET /case relay map[Content-Length:[4] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"no body, said so": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 0\r\n\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"fields": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "accept: a/b\r\nCookie: a=b\r\ncookie: c=d\r\nX-Empty:\r\nX-Spaces: \t a  b \t\r\nUser-Agent: me\r\nRange: bytes=0-3\r\nIf-None-Match: \"x\"\r\n\r\n",
			`GET /case relay map[Accept:[a/b] Cookie:[a=b c=d] If-None-Match:["x"] Range:[bytes=0-3] User-Agent:[me] X-Empty:[] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http] X-Spaces:[a  b]]`,
		},
		"a long name": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "X-" + strings.Repeat("Long", 20) + ": a\r\n\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http] X-Longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong:[a]]`,
		},
		"its own token": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\nHost: relay:80\r\nLockstep-Authorization: {token}\r\nAuthorization: Basic x\r\n\r\n",
			`GET /case relay:80 map[Authorization:[Basic x] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay:80] X-Forwarded-Proto:[http]]`,
		},
		"forwarded": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "X-Forwarded-For: 10.9.8.7\r\nX-Forwarded-Proto: https\r\nForwarded: for=x\r\n\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"hops": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: Basic x\r\n\r\n",
			`GET /case relay map[Te:[trailers] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"kept alive": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: Keep-Alive\r\n\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"it closes": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: close\r\n\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"expects": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Expect: 100-continue\r\n\r\n",
			`GET /case relay map[Expect:[100-continue] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"pretends, to a target": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Impersonate-User: x\r\n\r\n",
			`GET /case relay map[Impersonate-User:[x] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"a whole address": {
			"GET http://relay/agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"a connection": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Lockstep-Connection: 1\r\n\r\n",
			`GET /case relay map[X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"traced": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
			`GET /case relay map[Traceparent:[00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"no caching": {
			"GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Pragma: no-cache\r\n\r\n",
			`GET /case relay map[Cache-Control:[no-cache] Pragma:[no-cache] X-Forwarded-For:[127.0.0.1] X-Forwarded-Host:[relay] X-Forwarded-Proto:[http]]`,
		},
		"the cluster": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/pods?limit=5 HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/namespaces/a/pods?limit=5 kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"one of the cluster": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/pods/b HTTP/1.1\r\n" + authorized + "Accept: application/json\r\n\r\n",
			`GET /api/v1/namespaces/a/pods/b kubernetes map[Accept:[application/json] Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"no resource": {
			"GET /agents/7/kubernetes/version HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /version kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"the cluster itself": {
			"GET /agents/7/kubernetes HTTP/1.1\r\n" + authorized + "\r\n",
			`GET / kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"HEAD of the cluster": {
			"HEAD /agents/7/kubernetes/api/v1/pods HTTP/1.1\r\n" + authorized + "\r\n",
			`HEAD /api/v1/pods kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"a log": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/pods/b/log?container=c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/namespaces/a/pods/b/log?container=c kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"a proxy": {
			"GET /agents/7/kubernetes/api/v1/namespaces/a/services/b/proxy/c HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/namespaces/a/services/b/proxy/c kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"the cluster, two tokens": {
			"GET /agents/7/kubernetes/api HTTP/1.1\r\nHost: relay\r\nLockstep-Authorization: {token}\r\nAuthorization: Bearer x\r\nauthorization2: y\r\n\r\n",
			`GET /api kubernetes map[Authorization2:[y] Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"the cluster, as somebody": {
			"GET /agents/7/kubernetes/api HTTP/1.1\r\n" + authorized + "impersonate-user: x\r\n\r\n",
			``,
		},
		"the cluster, pretending": {
			"GET /agents/7/kubernetes/api HTTP/1.1\r\n" + authorized + "x-remote-user: x\r\n\r\n",
			`GET /api kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
		},
		"the cluster, no watch": {
			"GET /agents/7/kubernetes/api/v1/pods?watch=0 HTTP/1.1\r\n" + authorized + "\r\n",
			`GET /api/v1/pods?watch=0 kubernetes map[Impersonate-Group:[lockstep:role:reader lockstep:role:developer] Impersonate-User:[lockstep:user:8]]`,
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
			caller.send(c.request)
			response, body, _ := caller.readResponse(method)
			require.Equal(t, c.want, target.lastRequest(), "%s", body)
			if c.want != "" {
				require.Equal(t, http.StatusOK, response.StatusCode)
			}
		})
	}
}
