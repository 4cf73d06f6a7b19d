package http1_test

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/http1"
)

// said are the parts of the head of a request as text.
type said struct {
	method, path, query string
	asks                bool
	host, token         string
	own                 bool
	fields              []string
}

func saidBy(r *http1.Request) said {
	return said{r.Method, string(r.Path), string(r.Query), r.Asks, string(r.Host), string(r.Token), r.Own, texts(r.Fields)}
}

func texts(fields []http1.Field) (all []string) {
	for _, f := range fields {
		all = append(all, string(f.Name)+"="+string(f.Value))
	}
	return all
}

// get is the head of a request with these lines besides those that each has.
func get(lines ...string) string {
	return asking("GET /a HTTP/1.1", append([]string{"Host: h", "Authorization: Bearer t"}, lines...)...)
}

func asking(first string, lines ...string) string {
	return strings.Join(append([]string{first}, lines...), "\r\n") + "\r\n\r\n"
}

// many lines with one field each.
func many(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = "X: y"
	}
	return lines
}

var plainRequests = map[string]struct {
	head string
	want said
}{
	"as little as may be": {get(), said{method: "GET", path: "/a", host: "h", token: "Bearer t"}},
	"HEAD, the root":      {asking("HEAD / HTTP/1.1", "host:h", "authorization:t"), said{method: "HEAD", path: "/", host: "h", token: "t"}},
	"all that a path and a query may have": {
		asking("GET /agents/7/http/shop/A.b..c.-_~:@=+,/z/?q=%2Fa%00&x=/?-._~:@=+,Z9& HTTP/1.1", "Host: h", "Authorization: t"),
		said{method: "GET", path: "/agents/7/http/shop/A.b..c.-_~:@=+,/z/", query: "q=%2Fa%00&x=/?-._~:@=+,Z9&", asks: true, host: "h", token: "t"},
	},
	"a query that is empty":   {asking("GET /a? HTTP/1.1", "Host: h", "Authorization: t"), said{method: "GET", path: "/a", asks: true, host: "h", token: "t"}},
	"a query of one mark":     {asking("GET /a?? HTTP/1.1", "Host: h", "Authorization: t"), said{method: "GET", path: "/a", query: "?", asks: true, host: "h", token: "t"}},
	"a host with a port":      {asking("GET /a HTTP/1.1", "HOST: Relay_1.example-x:8443", "Authorization: t"), said{method: "GET", path: "/a", host: "Relay_1.example-x:8443", token: "t"}},
	"a host that is a number": {asking("GET /a HTTP/1.1", "Host: [fd00::7]:80", "Authorization: t"), said{method: "GET", path: "/a", host: "[fd00::7]:80", token: "t"}},
	"fields in their order, with spaces around them": {
		get("Accept: */*", "x-none:", "X-Spaces: \t", "Accept: \t a b\t, \t", "!#$%&'*+-.^_`|~: ~}|{\"(),/:;<=>?@[\\]"),
		said{method: "GET", path: "/a", host: "h", token: "Bearer t", fields: []string{"Accept=*/*", "x-none=", "X-Spaces=", "Accept=a b\t,", "!#$%&'*+-.^_`|~=~}|{\"(),/:;<=>?@[\\]"}},
	},
	"kept open":                    {get("Connection: keep-alive", "CONNECTION: Keep-Alive"), said{method: "GET", path: "/a", host: "h", token: "Bearer t"}},
	"a token of the relay's alone": {asking("GET /a HTTP/1.1", "lockstep-AUTHORIZATION: Bearer r", "Host: h"), said{method: "GET", path: "/a", host: "h", token: "Bearer r", own: true}},
	"a token of the target's, too": {
		get("Lockstep-Authorization: Bearer r", "X: y"),
		said{method: "GET", path: "/a", host: "h", token: "Bearer r", own: true, fields: []string{"X=y", "Authorization=Bearer t"}},
	},
	"names that only begin as others do": {
		get("Upgrade-Insecure-Requests: 1", "Impersonate: x", "X-Forwarded: x", "X-Remote: x", "Proxy: x", "Content-Length-X: 1", "Keep-Alive-X: 1", "Hosts: h", "Lockstep-Connections: 7"),
		said{
			method: "GET", path: "/a", host: "h", token: "Bearer t",
			fields: []string{"Upgrade-Insecure-Requests=1", "Impersonate=x", "X-Forwarded=x", "X-Remote=x", "Proxy=x", "Content-Length-X=1", "Keep-Alive-X=1", "Hosts=h", "Lockstep-Connections=7"},
		},
	},
	"a name as long as one may be": {get(strings.Repeat("n", 32) + ": x"), said{method: "GET", path: "/a", host: "h", token: "Bearer t", fields: []string{strings.Repeat("n", 32) + "=x"}}},
}

// Each is plain but for what it is called.
var otherRequests = map[string]string{
	"another method":          asking("POST /a HTTP/1.1", "Host: h", "Authorization: t"),
	"a method in small":       asking("get /a HTTP/1.1", "Host: h", "Authorization: t"),
	"no method":               asking(" /a HTTP/1.1", "Host: h", "Authorization: t"),
	"no target":               asking("GET  HTTP/1.1", "Host: h", "Authorization: t"),
	"two spaces":              asking("GET  /a HTTP/1.1", "Host: h", "Authorization: t"),
	"a tab for a space":       asking("GET\t/a HTTP/1.1", "Host: h", "Authorization: t"),
	"a space in the path":     asking("GET /a b HTTP/1.1", "Host: h", "Authorization: t"),
	"a space after the line":  asking("GET /a HTTP/1.1 ", "Host: h", "Authorization: t"),
	"a space before it":       asking(" GET /a HTTP/1.1", "Host: h", "Authorization: t"),
	"a line before it":        "\r\n" + get(),
	"no version":              asking("GET /a", "Host: h", "Authorization: t"),
	"HTTP/1.0":                asking("GET /a HTTP/1.0", "Host: h", "Authorization: t", "Connection: keep-alive"),
	"HTTP/2":                  "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"HTTP/1.11":               asking("GET /a HTTP/1.11", "Host: h", "Authorization: t"),
	"a version in small":      asking("GET /a http/1.1", "Host: h", "Authorization: t"),
	"the absolute form":       asking("GET http://h/a HTTP/1.1", "Host: h", "Authorization: t"),
	"the authority form":      asking("GET h:80 HTTP/1.1", "Host: h", "Authorization: t"),
	"the asterisk form":       asking("GET * HTTP/1.1", "Host: h", "Authorization: t"),
	"only a query":            asking("GET ?a HTTP/1.1", "Host: h", "Authorization: t"),
	"two slashes first":       asking("GET //a HTTP/1.1", "Host: h", "Authorization: t"),
	"two slashes within":      asking("GET /a//b HTTP/1.1", "Host: h", "Authorization: t"),
	"two slashes last":        asking("GET /a// HTTP/1.1", "Host: h", "Authorization: t"),
	"a dot":                   asking("GET /./a HTTP/1.1", "Host: h", "Authorization: t"),
	"a dot last":              asking("GET /a/. HTTP/1.1", "Host: h", "Authorization: t"),
	"two dots":                asking("GET /a/../b HTTP/1.1", "Host: h", "Authorization: t"),
	"two dots last":           asking("GET /a/.. HTTP/1.1", "Host: h", "Authorization: t"),
	"a hidden file":           asking("GET /a/.b HTTP/1.1", "Host: h", "Authorization: t"),
	"an escape":               asking("GET /a%62 HTTP/1.1", "Host: h", "Authorization: t"),
	"an escaped slash":        asking("GET /a%2fb HTTP/1.1", "Host: h", "Authorization: t"),
	"escaped dots":            asking("GET /%2e%2e/a HTTP/1.1", "Host: h", "Authorization: t"),
	"a backslash":             asking(`GET /a\b HTTP/1.1`, "Host: h", "Authorization: t"),
	"a semicolon":             asking("GET /a;b HTTP/1.1", "Host: h", "Authorization: t"),
	"a fragment":              asking("GET /a#b HTTP/1.1", "Host: h", "Authorization: t"),
	"a NUL in the path":       asking("GET /a\x00 HTTP/1.1", "Host: h", "Authorization: t"),
	"a high byte in the path": asking("GET /\xe9 HTTP/1.1", "Host: h", "Authorization: t"),
	"a semicolon in a query":  asking("GET /a?b;c HTTP/1.1", "Host: h", "Authorization: t"),
	"a fragment of a query":   asking("GET /a?b#c HTTP/1.1", "Host: h", "Authorization: t"),
	"a quote in a query":      asking("GET /a?b' HTTP/1.1", "Host: h", "Authorization: t"),
	"a high byte in a query":  asking("GET /a?\xe9 HTTP/1.1", "Host: h", "Authorization: t"),
	"an escape of one digit":  asking("GET /a?b=%2 HTTP/1.1", "Host: h", "Authorization: t"),
	"an escape of none":       asking("GET /a?b=%00% HTTP/1.1", "Host: h", "Authorization: t"),
	"an escape that is none":  asking("GET /a?b=%2g HTTP/1.1", "Host: h", "Authorization: t"),

	"no host":              asking("GET /a HTTP/1.1", "Authorization: t"),
	"two hosts":            get("Host: h"),
	"two hosts, oddly":     get("hOST: i"),
	"an empty host":        asking("GET /a HTTP/1.1", "Host:", "Authorization: t"),
	"a host with a space":  asking("GET /a HTTP/1.1", "Host: h i", "Authorization: t"),
	"a host with a user":   asking("GET /a HTTP/1.1", "Host: u@h", "Authorization: t"),
	"a host with a slash":  asking("GET /a HTTP/1.1", "Host: h/a", "Authorization: t"),
	"a host with a zone":   asking("GET /a HTTP/1.1", "Host: [fe80::1%25eth0]", "Authorization: t"),
	"hosts in a list":      asking("GET /a HTTP/1.1", "Host: h,i", "Authorization: t"),
	"no token":             asking("GET /a HTTP/1.1", "Host: h"),
	"two tokens":           get("authorization: Bearer t"),
	"two tokens of ours":   get("Lockstep-Authorization: r", "lockstep-authorization: r"),
	"nothing but the line": "GET /a HTTP/1.1\r\n\r\n",

	"a folded line":              get("X: y", " z"),
	"a line folded with a tab":   get("X: y", "\tz"),
	"a first line that folds":    asking("GET /a HTTP/1.1", " Host: h", "Host: h", "Authorization: t"),
	"a bare LF in a value":       get("X: y\nZ: 1"),
	"a bare LF for an end":       "GET /a HTTP/1.1\nHost: h\r\nAuthorization: t\r\n\r\n",
	"bare LFs for all ends":      "GET /a HTTP/1.1\nHost: h\nAuthorization: t\n\n",
	"a bare LF that ends a head": "GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: t\r\n\nX: y\r\n\r\n",
	"a bare CR in a value":       get("X: y\rZ: 1"),
	"a bare CR before an end":    get("X: y\r"),
	"a bare CR in a name":        get("X\r: y"),
	"a NUL in a value":           get("X: y\x00"),
	"a control in a value":       get("X: y\x1f"),
	"a delete in a value":        get("X: y\x7f"),
	"a high byte in a value":     get("X: y\xc3\xa9"),
	"a form feed around a value": get("X: \fy"),
	"a NUL in a name":            get("X\x00: y"),
	"a high byte in a name":      get("\xc3\xa9: y"),
	"a space before a colon":     get("X : y"),
	"a tab before a colon":       get("X\t: y"),
	"no name":                    get(": y"),
	"no colon":                   get("X"),
	"a name with a parenthesis":  get("X(: y"),

	"a connection that ends":       get("Connection: close"),
	"a connection in a list":       get("Connection: keep-alive, X-Mine"),
	"a connection in a list twice": get("Connection: keep-alive", "Connection: X-Mine"),
	"a connection of nothing":      get("Connection:"),
	"an upgrade":                   get("Connection: Upgrade", "Upgrade: tcp"),

	"a name that is too long to be known": get(strings.Repeat("n", 33) + ": x"),
	"more fields than may be":             get(many(http1.MaxFields - 1)...),
	"many more of them":                   get(many(3 * http1.MaxFields)...),
}

// notPlain are otherRequests, and those with a field that is for who knows what it means, however it is written.
func notPlain() map[string]string {
	all := maps.Clone(otherRequests)
	for _, name := range []string{
		"Content-Length", "Expect", "Forwarded", "HTTP2-Settings", "Keep-Alive", "Lockstep-Connection", "TE", "Trailer", "Traceparent", "Tracestate", "Transfer-Encoding", "Upgrade",
		"Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Scopes", "Impersonate-",
		"Proxy-Authorization", "Proxy-Connection", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Remote-User", "X-Remote-Group", "X-Remote-Extra-Scopes",
	} {
		for _, written := range cases(name) {
			all["the field "+written] = get(written + ": 0")
		}
	}
	return all
}

// cases in which a name may be written.
func cases(name string) []string {
	return []string{name, strings.ToLower(name), strings.ToUpper(name), odd(name)}
}

// odd is a name of which every second letter is large.
func odd(name string) string {
	b := []byte(strings.ToLower(name))
	for i := 1; i < len(b); i += 2 {
		b[i] = bytes.ToUpper(b[i : i+1])[0]
	}
	return string(b)
}

func TestAPlainRequestIsTakenApart(t *testing.T) {
	t.Parallel()
	var again http1.Request // what one reads is nothing of what was read before
	for name, tc := range plainRequests {
		for _, rest := range []string{"", tc.head, "x", "\n", "\r\n\r\n", "\x00\xff"} {
			b := []byte(tc.head + rest)
			size, err := again.Read(b)
			require.NoError(t, err, name)
			require.Equal(t, len(tc.head), size, name)
			require.Equal(t, tc.want, saidBy(&again), name)
			require.Equal(t, tc.head+rest, string(b), "%s: what was read is as it was", name)
		}
	}
}

func TestAPlainRequestIsShortUntilItIsWhole(t *testing.T) {
	t.Parallel()
	for name, tc := range plainRequests {
		for end := range len(tc.head) {
			size, err := new(http1.Request).Read([]byte(tc.head[:end]))
			require.ErrorIs(t, err, http1.ErrShort, "%s: %q", name, tc.head[:end])
			require.Zero(t, size)
		}
	}
}

func TestWhatIsNotPlainIsLeftToOthers(t *testing.T) {
	t.Parallel()
	for name, head := range notPlain() {
		var r http1.Request
		size, err := r.Read([]byte(head))
		require.ErrorIs(t, err, http1.ErrOther, name)
		require.Zero(t, size, name)
		for end := range len(head) {
			_, err := r.Read([]byte(head[:end]))
			require.Error(t, err, "%s is not plain before it is whole, either: %q", name, head[:end])
		}
	}
}

func TestARequestWithABareLineFeedIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"GET /a HTTP/1.1\n", "GET /a HTTP/1.1\r\nHost: h\n", "GET /a HTTP/1.1\nHost: h\n\n", "\n"} {
		_, err := new(http1.Request).Read([]byte(head))
		require.ErrorIs(t, err, http1.ErrOther, "%q may be whole to others", head)
	}
}

func TestARequestHasSoManyFields(t *testing.T) {
	t.Parallel()
	var r http1.Request
	_, err := r.Read([]byte(get(many(http1.MaxFields - 2)...)))
	require.NoError(t, err)
	require.Len(t, r.Fields, http1.MaxFields-2, "but for the host and the token")
}

func TestAPlainRequestCostsNoMemory(t *testing.T) {
	head := []byte(get("Accept: */*", "User-Agent: x", "Connection: keep-alive"))
	r := http1.Request{Fields: make([]http1.Field, 0, http1.MaxFields)}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := r.Read(head); err != nil {
			t.Error(err)
		}
	}))
}
