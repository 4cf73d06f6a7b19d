package proxy_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
)

// says is what a target answers.
type says struct {
	answer string
	single bool // byte by byte
	ends   bool // the connection, after the answer
}

// script is a target that answers what it is asked at /warm in a plain way, and anything else as a test has it. It remembers what it was asked last.
type script struct {
	says

	mu   sync.Mutex
	head string
}

const warm = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/plain\r\n\r\nwarm"

func (s *script) start(t *testing.T) string { return served(t, s.serve) }

func (s *script) serve(conn net.Conn) {
	var head bytes.Buffer
	asked := bufio.NewReader(conn)
	for {
		head.Reset()
		line := ""
		for line != "\r\n" {
			var err error
			if line, err = asked.ReadString('\n'); err != nil {
				return
			}
			head.WriteString(line)
		}
		request, err := http.ReadRequest(bufio.NewReader(io.MultiReader(&head, asked)))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(asked, max(request.ContentLength, 0)))
		if request.URL.Path == "/warm" {
			_, _ = io.WriteString(conn, warm)
			continue
		}
		s.mu.Lock()
		s.head = fmt.Sprintf("%s %s %s %q", request.Method, request.RequestURI, request.Host, request.Header)
		s.mu.Unlock()
		if s.single {
			for i := range len(s.answer) {
				if _, err := io.WriteString(conn, s.answer[i:i+1]); err != nil {
					return
				}
			}
		} else if _, err := io.WriteString(conn, s.answer); err != nil {
			return
		}
		if s.ends {
			return
		}
	}
}

func (s *script) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head
}

// outcome of a request, as its caller, its target and the record see it.
type outcome struct {
	Status  int
	Header  http.Header
	Body    string
	Trailer http.Header
	// Failed is that the answer did not come to its end.
	Failed bool
	// Again is that the connection carries another request afterwards, rightly.
	Again  bool
	Asked  string
	Record audit.Record
}

// outcomeOf a request over a connection that was used before.
func outcomeOf(t *testing.T, s *script, request string, said ...func(*stance)) outcome {
	t.Helper()
	f := stand(t, setupAt(t, s.start(t)), said...)
	c := f.call()
	for range 2 {
		require.Equal(t, "warm", c.get("/warm"))
	}
	_ = f.publish()
	c.say(request)
	method, _, _ := strings.Cut(request, " ")
	o := outcome{Failed: true}
	response, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err == nil {
		var body []byte
		body, err = io.ReadAll(response.Body)
		o = outcome{Status: response.StatusCode, Header: response.Header, Body: string(body), Failed: err != nil}
		if len(response.Trailer) > 0 {
			o.Trailer = response.Trailer
		}
	}
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the answer has no end")
	if !o.Failed && !response.Close {
		c.say(plain("/warm"))
		if response, err = http.ReadResponse(c.r, nil); err == nil {
			o.Again = read(t, response) == "warm"
		}
	}
	o.Asked = s.asked()
	all := f.publish()
	require.NotEmpty(t, all)
	o.Record = all[0]
	require.NotEmpty(t, o.Record.RequestID)
	o.Record.RequestID, o.Record.StartedAt, o.Record.Duration, o.Record.ConnectionID = "", time.Time{}, 0, 0
	return o
}

// equal says that both ways through the relay come to the same. What is left to the server's taste is not compared: it dates and guesses at what is said without, and says how the body ends
// in its own way.
func equal(t *testing.T, s says, request string, differs func(direct, served *outcome)) outcome {
	t.Helper()
	direct := outcomeOf(t, &script{says: s}, request)
	served := outcomeOf(t, &script{says: s}, request, func(s *stance) { s.slow = true })
	compare(t, s, request, direct, served, differs)
	return direct
}

func compare(t *testing.T, s says, request string, direct, served outcome, differs func(direct, served *outcome)) {
	t.Helper()
	for _, o := range []*outcome{&direct, &served} {
		o.Header = o.Header.Clone()
		if !strings.Contains(s.answer, "Date:") {
			if o.Header != nil {
				_, err := http.ParseTime(o.Header.Get("Date"))
				require.NoError(t, err)
			}
			delete(o.Header, "Date")
		}
		if !strings.Contains(s.answer, "Content-Type:") && o.Status != http.StatusServiceUnavailable {
			delete(o.Header, "Content-Type")
		}
		if !strings.HasPrefix(request, "HEAD") && o.Status != http.StatusNoContent && o.Status != http.StatusNotModified {
			delete(o.Header, "Content-Length")
		}
		delete(o.Header, "Connection")
	}
	if served.Failed && direct.Failed { // the server may not have begun to pass it on
		served.Status, served.Header, served.Body = direct.Status, direct.Header, direct.Body
	}
	if differs != nil {
		differs(&direct, &served)
	}
	require.Equal(t, served, direct)
}

// FuzzBothWaysPassOnTheSameAnswer has targets say what they should not.
func FuzzBothWaysPassOnTheSameAnswer(f *testing.F) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\ngood",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nETag: x\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n",
	} {
		f.Add(answer, false)
		f.Add(answer, true)
	}
	f.Fuzz(func(t *testing.T, answer string, head bool) {
		if strings.Contains(answer, "Date") || strings.Contains(answer, "Content-Type") {
			return // net/http's server has a word there, too
		}
		said, request := says{answer: answer, ends: true}, plain("/case")
		if head {
			request = "HEAD" + strings.TrimPrefix(request, "GET")
		}
		equal(t, said, request, func(direct, served *outcome) {
			if direct.Status == http.StatusNotModified {
				delete(direct.Header, "Content-Length")
			}
			if head { // the server counts what it does not send of its own answer
				served.Record.BytesReceived = direct.Record.BytesReceived
			}
		})
	})
}

// An answer comes to the same on both ways through the relay, whatever the target says.
func TestBothWaysPassOnTheSameAnswer(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
	long := strings.Repeat("0123456789abcdef", 10_000)
	for name, c := range map[string]struct {
		says

		head    bool // is asked for
		status  int
		body    string
		failed  bool
		differs func(direct, served *outcome)
	}{
		"a length":             {says: says{answer: good}, status: 200, body: "good"},
		"a long one":           {says: says{answer: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long), long)}, status: 200, body: long},
		"nothing":              {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}, status: 200},
		"in single bytes":      {says: says{answer: good, single: true}, status: 200, body: "good"},
		"chunks":               {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n4;x=y\r\n day\r\n0\r\n\r\n"}, status: 200, body: "good day"},
		"chunks in bytes":      {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", single: true}, status: 200, body: "good"},
		"a large chunk":        {says: says{answer: fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long)}, status: 200, body: long},
		"no chunk":             {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, status: 200},
		"trailers":             {says: says{answer: "HTTP/1.1 200 OK\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n\r\n"}, status: 200, body: "good"},
		"trailers, unsaid":     {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\nX: 1\r\nX: 2\r\n\r\n"}, status: 200, body: "good"},
		"trailers that frame":  {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nContent-Length: 8\r\nTransfer-Encoding: x\r\nHost: y\r\n\r\n"}, status: 200, body: "good"},
		"to the end":           {says: says{answer: "HTTP/1.1 200 OK\r\n\r\ngood", ends: true}, status: 200, body: "good"},
		"nothing, to the end":  {says: says{answer: "HTTP/1.1 200 OK\r\n\r\n", ends: true}, status: 200},
		"HTTP/1.0":             {says: says{answer: "HTTP/1.0 200 OK\r\n\r\ngood", ends: true}, status: 200, body: "good"},
		"HTTP/1.0, a length":   {says: says{answer: "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"HEAD":                 {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"}, head: true, status: 200},
		"HEAD without length":  {says: says{answer: "HTTP/1.1 200 OK\r\n\r\n"}, head: true, status: 200},
		"HEAD of chunks":       {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"}, head: true, status: 200},
		"HEAD with a body":     {says: says{answer: good}, head: true, status: 200},
		"HEAD, no content":     {says: says{answer: "HTTP/1.1 204 No Content\r\n\r\n"}, head: true, status: 204},
		"HEAD, HTTP/1.0":       {says: says{answer: "HTTP/1.0 200 OK\r\n\r\n", ends: true}, head: true, status: 200},
		"no content":           {says: says{answer: "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"}, status: 204},
		"no content, a length": {says: says{answer: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n"}, status: 204},
		"no content, a body":   {says: says{answer: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil"}, status: 204},
		"no content, chunks":   {says: says{answer: "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"}, status: 204},
		"not modified":         {says: says{answer: "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"}, status: 304},
		"not modified, length": {says: says{answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n"}, status: 304, differs: func(direct, served *outcome) {
			require.Equal(t, "4", direct.Header.Get("Content-Length"), "it is what would have been (RFC 9110, section 15.4.5)")
			require.Empty(t, served.Header.Get("Content-Length"), "net/http's server leaves it out")
			delete(direct.Header, "Content-Length")
		}},
		"interim ones before":  {says: says{answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + good}, status: 200, body: "good"},
		"too many interim":     {says: says{answer: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9) + good}, status: 503},
		"a switch":             {says: says{answer: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"}, status: 503},
		"an odd status":        {says: says{answer: "HTTP/1.1 299 What\r\nContent-Length: 4\r\n\r\ngood"}, status: 299, body: "good"},
		"an odder status":      {says: says{answer: "HTTP/1.1 799 What\r\nContent-Length: 4\r\n\r\ngood"}, status: 799, body: "good"},
		"a status alone":       {says: says{answer: "HTTP/1.1 200\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"a large head":         {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: " + strings.Repeat("a", 8000) + "\r\nX-B: " + strings.Repeat("b", 80_000) + "\r\n\r\ngood"}, status: 200, body: "good"},
		"many fields":          {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + strings.Repeat("X-A: b\r\n", 100) + "\r\ngood"}, status: 200, body: "good"},
		"a giant head":         {says: says{answer: "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 1100)}, status: 503},
		"a head cut off":       {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Len", ends: true}, status: 503},
		"a line cut off":       {says: says{answer: "HTTP/1.1 20", ends: true}, status: 503},
		"a body cut off":       {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\ngood", ends: true}, status: 200, body: "good", failed: true},
		"a long body cut off":  {says: says{answer: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long)+1, long), ends: true}, status: 200, body: long, failed: true},
		"a chunk cut off":      {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\ngood", ends: true}, status: 200, body: "good", failed: true},
		"chunks cut off":       {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n", ends: true}, status: 200, body: "good", failed: true},
		"trailers cut off":     {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nSum: 8\r\n", ends: true}, status: 200, body: "good", failed: true},
		"chunks that are none": {says: says{answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodxx\r\n0\r\n\r\n"}, status: 200, body: "good", failed: true},
		"two answers":          {says: says{answer: good + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"}, status: 200, body: "good"},
		"more than its length": {says: says{answer: good + "evil"}, status: 200, body: "good"},
		"chunks and a length":  {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n"}, status: 200, body: "good"},
		"the same length":      {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"two lengths":          {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ngood"}, status: 503},
		"no length":            {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\ngood"}, status: 503},
		"line feeds alone":     {says: says{answer: "HTTP/1.1 200 OK\nContent-Length: 4\n\ngood"}, status: 200, body: "good"},
		"a folded line":        {says: says{answer: "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"a space too much":     {says: says{answer: "HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\ngood", ends: true}, status: 200, body: "good"},
		"no HTTP":              {says: says{answer: "SSH-2.0-OpenSSH_9\r\n"}, status: 503},
		"close":                {says: says{answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"a hop":                {says: says{answer: "HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nX-End: 2\r\nKeep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"kept alive":           {says: says{answer: "HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"an upgrade, unasked":  {says: says{answer: "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\nContent-Type: a/b\r\n\r\ngood"}, status: 426, body: "good"},
		"for the proxy":        {says: says{answer: "HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Type: a/b\r\nContent-Length: 4\r\n\r\ngood"}, status: 407, body: "good"},
		"two cookies":          {says: says{answer: "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"a date and a type":    {says: says{answer: "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Type: a/b\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"an empty field":       {says: says{answer: "HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 4\r\n\r\ngood"}, status: 200, body: "good"},
		"no answer":            {says: says{ends: true}, status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := about("/case?a=b") + "\r\n"
			differs := c.differs
			if c.head {
				request = "HEAD" + strings.TrimPrefix(request, "GET")
			}
			got := equal(t, c.says, request, differs)
			require.Equal(t, c.status, got.Status)
			if c.status != http.StatusServiceUnavailable {
				require.Equal(t, c.body, got.Body)
			}
			require.Equal(t, c.failed, got.Failed)
			require.NotEqual(t, c.failed, got.Again)
		})
	}
}

// A target is asked the same on both ways through the relay.
func TestBothWaysAskTheSame(t *testing.T) {
	t.Parallel()
	const authorized = "Host: relay\r\nAuthorization: {token}\r\n"
	for name, c := range map[string]struct {
		request string
		differs func(direct, served *outcome)
	}{
		"plain":                 {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "\r\n"},
		"no path":               {request: "GET /agents/7/http/shop HTTP/1.1\r\n" + authorized + "\r\n"},
		"a query":               {request: "GET /agents/7/http/shop/a/b.c?d=e&f=%20g+h&i&=j HTTP/1.1\r\n" + authorized + "\r\n"},
		"no query, but asked":   {request: "GET /agents/7/http/shop/? HTTP/1.1\r\n" + authorized + "\r\n"},
		"two questions":         {request: "GET /agents/7/http/shop/?a?b=c HTTP/1.1\r\n" + authorized + "\r\n"},
		"semicolons":            {request: "GET /agents/7/http/shop/?a=b;c=d&e=%zz HTTP/1.1\r\n" + authorized + "\r\n"},
		"escapes":               {request: "GET /agents/7/http/shop/a%2Fb%20c HTTP/1.1\r\n" + authorized + "\r\n"},
		"two slashes":           {request: "GET /agents/7/http/shop//a HTTP/1.1\r\n" + authorized + "\r\n"},
		"signs":                 {request: "GET /agents/7/http/shop/a:b@c=d+e,f~g_h-i.j HTTP/1.1\r\n" + authorized + "\r\n"},
		"HEAD":                  {request: "HEAD /agents/7/http/shop/case?x HTTP/1.1\r\n" + authorized + "\r\n"},
		"POST":                  {request: "POST /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 4\r\n\r\ngood"},
		"GET with a body":       {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 4\r\n\r\ngood"},
		"no body, said so":      {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Content-Length: 0\r\n\r\n"},
		"fields":                {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "accept: a/b\r\nCookie: a=b\r\ncookie: c=d\r\nX-Empty:\r\nX-Spaces: \t a  b \t\r\nUser-Agent: me\r\nRange: bytes=0-3\r\nIf-None-Match: \"x\"\r\n\r\n"},
		"a long name":           {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "X-" + strings.Repeat("Long", 20) + ": a\r\n\r\n"},
		"its own token":         {request: "GET /agents/7/http/shop/case HTTP/1.1\r\nHost: relay:80\r\nLockstep-Authorization: {token}\r\nAuthorization: Basic x\r\n\r\n"},
		"forwarded":             {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "X-Forwarded-For: 10.9.8.7\r\nX-Forwarded-Proto: https\r\nForwarded: for=x\r\n\r\n"},
		"hops":                  {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: Basic x\r\n\r\n"},
		"kept alive":            {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: Keep-Alive\r\n\r\n"},
		"it closes":             {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Connection: close\r\n\r\n"},
		"expects":               {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Expect: 100-continue\r\n\r\n"},
		"pretends, to a target": {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Impersonate-User: x\r\n\r\n"},
		"a whole address":       {request: "GET http://relay/agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "\r\n"},
		"a connection":          {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Lockstep-Connection: 1\r\n\r\n"},
		"traced":                {request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"},
		"no caching": {
			request: "GET /agents/7/http/shop/case HTTP/1.1\r\n" + authorized + "Pragma: no-cache\r\n\r\n",
			differs: func(direct, served *outcome) {
				require.Contains(t, served.Asked, `"Cache-Control":["no-cache"]`, "net/http takes the one for the other")
				direct.Asked, served.Asked = "", ""
			},
		},
		"the cluster":              {request: "GET /agents/7/kubernetes/api/v1/namespaces/a/pods?limit=5 HTTP/1.1\r\n" + authorized + "\r\n"},
		"one of the cluster":       {request: "GET /agents/7/kubernetes/api/v1/namespaces/a/pods/b HTTP/1.1\r\n" + authorized + "Accept: application/json\r\n\r\n"},
		"no resource":              {request: "GET /agents/7/kubernetes/version HTTP/1.1\r\n" + authorized + "\r\n"},
		"the cluster itself":       {request: "GET /agents/7/kubernetes HTTP/1.1\r\n" + authorized + "\r\n"},
		"HEAD of the cluster":      {request: "HEAD /agents/7/kubernetes/api/v1/pods HTTP/1.1\r\n" + authorized + "\r\n"},
		"a log":                    {request: "GET /agents/7/kubernetes/api/v1/namespaces/a/pods/b/log?container=c HTTP/1.1\r\n" + authorized + "\r\n"},
		"a proxy":                  {request: "GET /agents/7/kubernetes/api/v1/namespaces/a/services/b/proxy/c HTTP/1.1\r\n" + authorized + "\r\n"},
		"the cluster, two tokens":  {request: "GET /agents/7/kubernetes/api HTTP/1.1\r\nHost: relay\r\nLockstep-Authorization: {token}\r\nAuthorization: Bearer x\r\nauthorization2: y\r\n\r\n"},
		"the cluster, as somebody": {request: "GET /agents/7/kubernetes/api HTTP/1.1\r\n" + authorized + "impersonate-user: x\r\n\r\n"},
		"the cluster, pretending":  {request: "GET /agents/7/kubernetes/api HTTP/1.1\r\n" + authorized + "x-remote-user: x\r\n\r\n"},
		"the cluster, no watch":    {request: "GET /agents/7/kubernetes/api/v1/pods?watch=0 HTTP/1.1\r\n" + authorized + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
			if !strings.HasPrefix(c.request, "HEAD") {
				answer += "good"
			}
			got := equal(t, says{answer: answer}, c.request, c.differs)
			if !strings.Contains(c.request, "impersonate-user") {
				require.Equal(t, http.StatusOK, got.Status, got.Body)
				require.NotEmpty(t, got.Asked)
			}
			require.NotContains(t, got.Asked, "Bearer ey", "a caller's token goes nowhere")
		})
	}
}
