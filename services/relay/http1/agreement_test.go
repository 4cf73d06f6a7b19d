package http1_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http/httpguts"

	"lockstep.internal/services/relay/http1"
)

// input counts what is taken of it.
type input struct {
	*bufio.Reader

	below *bytes.Reader
}

func inputOf(b []byte) input {
	below := bytes.NewReader(b)
	return input{bufio.NewReader(below), below}
}

func (i input) taken() int { return int(i.below.Size()) - i.below.Len() - i.Buffered() }

// refused says whether a head was not read, and that it was so as it is promised.
func refused(t *testing.T, size int, err error) bool {
	t.Helper()
	if err == nil {
		return false
	}
	require.Zero(t, size)
	require.Contains(t, []error{http1.ErrShort, http1.ErrOther}, err)
	return true
}

// header of fields as net/http has it.
func header(t *testing.T, fields []http1.Field, more ...http1.Field) http.Header {
	t.Helper()
	all := http.Header{}
	for _, f := range append(append([]http1.Field(nil), fields...), more...) {
		require.True(t, httpguts.ValidHeaderFieldName(string(f.Name)), "%q", f.Name)
		require.True(t, httpguts.ValidHeaderFieldValue(string(f.Value)), "%q", f.Value)
		all.Add(string(f.Name), string(f.Value))
	}
	// The one thing that net/http says in its own words: what Pragma meant before there was Cache-Control (RFC 9111, section 5.4).
	if all.Get("Pragma") == "no-cache" && len(all["Cache-Control"]) == 0 {
		all["Cache-Control"] = []string{"no-cache"}
	}
	return all
}

// agreeOnRequest compares what net/http makes of a request that is plain. It says whether one is.
func agreeOnRequest(t *testing.T, b []byte) bool {
	t.Helper()
	var r http1.Request
	size, err := r.Read(b)
	if refused(t, size, err) {
		return false
	}
	in := inputOf(b)
	request, err := http.ReadRequest(in.Reader)
	require.NoError(t, err, "%q", b)
	require.Equal(t, size, in.taken(), "%q", b)
	require.Equal(t, [...]string{r.Method, "HTTP/1.1", string(r.Host)}, [...]string{request.Method, request.Proto, request.Host})
	require.True(t, httpguts.ValidHostHeader(request.Host), request.Host)

	require.Equal(t, string(r.Path), request.URL.Path)
	require.Empty(t, request.URL.RawPath)
	require.Equal(t, string(r.Query), request.URL.RawQuery)
	require.Equal(t, r.Asks && len(r.Query) == 0, request.URL.ForceQuery)
	require.Empty(t, request.URL.Scheme+request.URL.Opaque+request.URL.Host+request.URL.Fragment)
	require.Nil(t, request.URL.User)
	_, err = url.ParseQuery(request.URL.RawQuery)
	require.NoError(t, err, "the reverse proxy would have changed it")

	require.Equal(t, http.NoBody, request.Body)
	require.Zero(t, request.ContentLength)
	require.Empty(t, request.TransferEncoding)
	require.Empty(t, request.Trailer)
	require.False(t, request.Close)

	require.LessOrEqual(t, len(r.Fields), http1.MaxFields)
	for _, value := range request.Header["Connection"] {
		require.True(t, strings.EqualFold("keep-alive", value), value)
	}
	request.Header.Del("Connection")
	token := "Authorization"
	if r.Own {
		token = "Lockstep-Authorization"
	}
	require.Equal(t, header(t, r.Fields, http1.Field{Name: []byte(token), Value: r.Token}), request.Header, "%q", b)

	// What is passed on is one request, and the same one.
	again := passedOn(&r)
	in = inputOf(append(again, b...))
	passed, err := http.ReadRequest(in.Reader)
	require.NoError(t, err, "%q", again)
	require.Equal(t, len(again), in.taken(), "%q", again)
	require.Equal(t, [...]string{r.Method, string(r.Host), request.RequestURI}, [...]string{passed.Method, passed.Host, passed.RequestURI})
	require.Equal(t, http.NoBody, passed.Body)
	require.False(t, passed.Close)
	require.Equal(t, header(t, r.Fields), passed.Header)
	return true
}

// passedOn is a request as a target is sent it.
func passedOn(r *http1.Request) []byte {
	var b bytes.Buffer
	b.WriteString(r.Method + " " + string(r.Path))
	if r.Asks {
		b.WriteString("?" + string(r.Query))
	}
	fmt.Fprintf(&b, " HTTP/1.1\r\nHost: %s\r\n", r.Host)
	return end(&b, r.Fields)
}

func end(b *bytes.Buffer, fields []http1.Field) []byte {
	for _, f := range fields {
		fmt.Fprintf(b, "%s: %s\r\n", f.Name, f.Value)
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// agreeOnResponse compares what net/http makes of an answer that is plain. It says whether one is.
func agreeOnResponse(t *testing.T, b []byte, method string) bool {
	t.Helper()
	var r http1.Response
	bodiless := method == http.MethodHead
	size, err := r.Read(b, bodiless)
	if refused(t, size, err) {
		return false
	}
	in := inputOf(b)
	compare(t, &r, in, size, method)

	// What is passed on is one answer, and the same one.
	var out bytes.Buffer
	fmt.Fprintf(&out, "HTTP/1.1 %d \r\n", r.Status)
	if r.Close {
		out.WriteString("Connection: close\r\n")
	}
	again := end(&out, r.Fields)
	compare(t, &r, inputOf(append(again, b[size:]...)), len(again), method)
	return true
}

func compare(t *testing.T, r *http1.Response, in input, size int, method string) {
	t.Helper()
	response, err := http.ReadResponse(in.Reader, &http.Request{Method: method})
	require.NoError(t, err)
	require.Equal(t, size, in.taken())
	require.Equal(t, "HTTP/1.1", response.Proto)
	require.Equal(t, r.Status, response.StatusCode)
	require.Equal(t, r.Close, response.Close)
	require.Empty(t, response.TransferEncoding)
	require.Empty(t, response.Trailer)

	left := in.below.Size() - int64(size)
	body, err := io.ReadAll(response.Body)
	require.Len(t, body, int(min(r.Length, left)))
	require.Equal(t, r.Length > left, err != nil)
	if method != http.MethodHead { // to which it is that of what is not sent
		require.Equal(t, r.Length, response.ContentLength)
	}

	require.LessOrEqual(t, len(r.Fields), http1.MaxFields)
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization"} {
		response.Header.Del(name)
	}
	for _, name := range []string{"Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		require.NotContains(t, response.Header, name)
	}
	require.Equal(t, header(t, r.Fields), response.Header)
}

func FuzzRequest(f *testing.F) {
	for _, head := range requests() {
		f.Add([]byte(head))
	}
	for _, text := range []string{"?a=%2f", "b/c", "h:1", "Accept: */*\r\nX:", "\r\nLockstep-Authorization: r"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		text := string(b)
		for _, head := range []string{ // the text as a head, and in each place of one
			text,
			asking("GET /a"+text+" HTTP/1.1", "Host: h", "Authorization: t"),
			asking("GET /a?"+text+" HTTP/1.1", "Host: h", "Authorization: t"),
			asking("GET /a HTTP/1.1"+text, "Host: h", "Authorization: t"),
			asking("GET /a HTTP/1.1", "Host: h"+text, "Authorization: t"),
			asking("GET /a HTTP/1.1", "Host: h", "Authorization:"+text),
			get(text),
			get(text + ": x"),
			get("X: " + text),
			get("Connection: " + text),
		} {
			agreeOnRequest(t, []byte(head))
		}
	})
}

func FuzzResponse(f *testing.F) {
	for _, head := range responses() {
		f.Add([]byte(head))
	}
	for _, text := range []string{"5", "close", "keep-alive", "Server: x\r\nX:", "404 Not Found", "\r\nContent-Length: 6"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		text := string(b)
		for _, head := range []string{
			text,
			asking("HTTP/1.1 "+text, "Content-Length: 5"),
			asking("HTTP/1.1 200 "+text, "Content-Length: 5"),
			asking("HTTP/1.1 200 OK", "Content-Length:"+text),
			asking("HTTP/1.1 200 OK", text),
			answer(text),
			answer(text + ": x"),
			answer("X: " + text),
			answer("Connection: " + text),
		} {
			get := agreeOnResponse(t, []byte(head), http.MethodGet)
			bodiless := agreeOnResponse(t, []byte(head), http.MethodHead)
			require.True(t, bodiless || !get, "what is plain with a body is plain without")
		}
	})
}

func requests() (all []string) {
	for _, tc := range plainRequests {
		all = append(all, tc.head)
	}
	for _, head := range notPlain() {
		all = append(all, head)
	}
	return append(all, get("Pragma: no-cache"), get("pragma: no-cache", "cache-control: x"))
}

func responses() (all []string) {
	for _, tc := range plainResponses {
		all = append(all, tc.head+"12345")
	}
	for _, head := range bodilessResponses {
		all = append(all, head)
	}
	for _, head := range notPlainResponses() {
		all = append(all, head)
	}
	return append(all, answer("Pragma: no-cache"), answer("pragma: no-cache", "cache-control: x"))
}

// neighbours are texts that differ from one by one byte: another one, one more, or one less.
func neighbours(text string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for at := range len(text) + 1 {
			for c := range 256 {
				if !yield([]byte(text[:at] + string([]byte{byte(c)}) + text[at:])) {
					return
				}
				if at < len(text) && !yield([]byte(text[:at]+string([]byte{byte(c)})+text[at+1:])) {
					return
				}
			}
			if at < len(text) && !yield([]byte(text[:at]+text[at+1:])) {
				return
			}
		}
	}
}

// ends are all that may be taken for the end of a line or a field, and some that are none: up to three of these bytes.
func ends() (all []string) {
	const bytes = "\r\n \t:x\x00"
	last := []string{""}
	for range 3 {
		var longer []string
		for _, text := range last {
			for i := range len(bytes) {
				longer = append(longer, text+bytes[i:i+1])
			}
		}
		all = append(all, longer...)
		last = longer
	}
	return all
}

const (
	someRequest  = "GET /a/b?c=%2f HTTP/1.1\r\nHost: h:1\r\nAuthorization: t\r\nConnection: keep-alive\r\nX: a b\r\n\r\n"
	someResponse = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\nX: a b\r\n\r\n"
)

// Whatever one byte does to a head that is plain, it is not taken for something else than it is to net/http.
func TestOneByteDoesNotDivide(t *testing.T) {
	t.Parallel()
	plain := 0
	for b := range neighbours(someRequest) {
		if agreeOnRequest(t, b) {
			plain++
		}
	}
	require.Greater(t, plain, 1000, "many are plain")
	plain = 0
	for b := range neighbours(someResponse) {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if agreeOnResponse(t, b, method) {
				plain++
			}
		}
	}
	require.Greater(t, plain, 1000, "many are plain")
}

// Wherever a line may be taken to end, it does so for both.
func TestTheEndsOfLinesDoNotDivide(t *testing.T) {
	t.Parallel()
	plain := 0
	for _, end := range ends() {
		for at := range len(someRequest) {
			if agreeOnRequest(t, []byte(someRequest[:at]+end+someRequest[at:])) {
				plain++
			}
		}
		for at := range len(someResponse) {
			if agreeOnResponse(t, []byte(someResponse[:at]+end+someResponse[at:]), http.MethodGet) {
				plain++
			}
		}
	}
	require.Greater(t, plain, 1000, "many are plain")
}
