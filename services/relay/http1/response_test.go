package http1_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/http1"
)

// answer is the head of an answer of five bytes with these lines besides.
func answer(lines ...string) string {
	return asking("HTTP/1.1 200 OK", append([]string{"Content-Length: 5"}, lines...)...)
}

// told is what an answer to GET says. To HEAD it says the same, but that nothing follows.
type told struct {
	status int
	length int64
	closes bool
	fields []string
}

var plainResponses = map[string]struct {
	head string
	want told
}{
	"as little as may be":      {answer(), told{200, 5, false, []string{"Content-Length=5"}}},
	"without a reason":         {asking("HTTP/1.1 404 ", "content-length:0"), told{404, 0, false, []string{"content-length=0"}}},
	"with a long reason":       {asking("HTTP/1.1 599 I am\t~ (a teapot): \"1\"", "Content-Length: 7"), told{599, 7, false, []string{"Content-Length=7"}}},
	"a reason of spaces":       {asking("HTTP/1.1 200   ", "Content-Length: 7"), told{200, 7, false, []string{"Content-Length=7"}}},
	"no content":               {asking("HTTP/1.1 204 No Content"), told{204, 0, false, nil}},
	"not modified":             {asking("HTTP/1.1 304 Not Modified", "ETag: x"), told{304, 0, false, []string{"ETag=x"}}},
	"not modified, of so many": {asking("HTTP/1.1 304 Not Modified", "Content-Length: 12"), told{304, 0, false, []string{"Content-Length=12"}}},
	"the largest length":       {asking("HTTP/1.1 200 OK", "Content-Length: 999999999999999"), told{200, 999999999999999, false, []string{"Content-Length=999999999999999"}}},
	"a length in spaces":       {asking("HTTP/1.1 200 OK", "CONTENT-LENGTH: \t 5 \t"), told{200, 5, false, []string{"CONTENT-LENGTH=5"}}},
	"a length with zeros":      {asking("HTTP/1.1 200 OK", "Content-Length: 0010"), told{200, 10, false, []string{"Content-Length=0010"}}},
	"its end":                  {answer("connection: Close"), told{200, 5, true, []string{"Content-Length=5"}}},
	"its end, also said":       {answer("Connection: close", "Connection: keep-alive"), told{200, 5, true, []string{"Content-Length=5"}}},
	"kept open":                {answer("CONNECTION: Keep-Alive", "Keep-Alive: timeout=5"), told{200, 5, false, []string{"Content-Length=5"}}},
	"for the connection":       {answer("Proxy-Connection: x", "proxy-authenticate: x", "PROXY-AUTHORIZATION: x", "kEEP-aLIVE: x"), told{200, 5, false, []string{"Content-Length=5"}}},
	"fields in their order": {
		answer("Set-Cookie: b=1", "x-none:", "Set-Cookie: \ta=2; Path=/ ", strings.Repeat("N", 40)+": x", "TE-X: 1", "Trailers: 1"),
		told{200, 5, false, []string{"Content-Length=5", "Set-Cookie=b=1", "x-none=", "Set-Cookie=a=2; Path=/", strings.Repeat("N", 40) + "=x", "TE-X=1", "Trailers=1"}},
	},
}

// bodilessResponses are plain only where no body follows.
var bodilessResponses = map[string]string{
	"no length":         asking("HTTP/1.1 200 OK"),
	"no length, closed": asking("HTTP/1.1 500 Oh", "Connection: close"),
}

// otherResponses are plain but for what they are called.
var otherResponses = map[string]string{
	"an interim answer":      asking("HTTP/1.1 100 Continue"),
	"early hints":            asking("HTTP/1.1 103 Early Hints", "Link: x"),
	"switching protocols":    asking("HTTP/1.1 101 Switching Protocols", "Content-Length: 0"),
	"a status below":         asking("HTTP/1.1 199 Low", "Content-Length: 5"),
	"a status above":         asking("HTTP/1.1 600 High", "Content-Length: 5"),
	"a status of nothing":    asking("HTTP/1.1 000 None", "Content-Length: 5"),
	"a status of two digits": asking("HTTP/1.1 20 OK", "Content-Length: 5"),
	"a status of four":       asking("HTTP/1.1 2000 OK", "Content-Length: 5"),
	"a status with a sign":   asking("HTTP/1.1 +20 OK", "Content-Length: 5"),
	"a status of letters":    asking("HTTP/1.1 2OO OK", "Content-Length: 5"),
	"no status":              asking("HTTP/1.1", "Content-Length: 5"),
	"no space after it":      asking("HTTP/1.1 200", "Content-Length: 5"),
	"a tab after it":         asking("HTTP/1.1 200\tOK", "Content-Length: 5"),
	"two spaces before it":   asking("HTTP/1.1  200 OK", "Content-Length: 5"),
	"a tab before it":        asking("HTTP/1.1\t200 OK", "Content-Length: 5"),
	"HTTP/1.0":               asking("HTTP/1.0 200 OK", "Content-Length: 5"),
	"HTTP/2":                 asking("HTTP/2 200 OK", "Content-Length: 5"),
	"a version in small":     asking("http/1.1 200 OK", "Content-Length: 5"),
	"another protocol":       asking("ICY 200 OK", "Content-Length: 5"),
	"a line before it":       "\r\n" + answer(),

	"a bare LF in the reason":       asking("HTTP/1.1 200 OK\nX: y", "Content-Length: 5"),
	"a length in the reason":        asking("HTTP/1.1 200 OK\nContent-Length: 7", "Content-Length: 5"),
	"a head in the reason":          asking("HTTP/1.1 200 OK\nContent-Length: 0\n\nHTTP/1.1 200 OK", "Content-Length: 5"),
	"a coding in the reason":        asking("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", "Content-Length: 5"),
	"a bare CR in the reason":       asking("HTTP/1.1 200 O\rK", "Content-Length: 5"),
	"a bare CR after the reason":    asking("HTTP/1.1 200 OK\r", "Content-Length: 5"),
	"a NUL in the reason":           asking("HTTP/1.1 200 O\x00K", "Content-Length: 5"),
	"a high byte in the reason":     asking("HTTP/1.1 200 \xe9", "Content-Length: 5"),
	"a folded line":                 answer("X: y", " z"),
	"a first line that folds":       asking("HTTP/1.1 200 OK", " X: y", "Content-Length: 5"),
	"a bare LF in a value":          answer("X: y\nZ: 1"),
	"bare LFs for all ends":         "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
	"a bare LF that ends a head":    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\nab\r\n\r\n",
	"a bare CR in a value":          answer("X: y\rZ: 1"),
	"a NUL in a value":              answer("X: y\x00"),
	"a control in a value":          answer("X: \x01y"),
	"a high byte in a value":        answer("X: y\xe9"),
	"a space before a colon":        answer("X : y"),
	"a space before a colon, oddly": answer("Transfer-Encoding : chunked"),
	"no name":                       answer(": y"),
	"no colon":                      answer("X"),
	"a name with a space":           answer("X Y: z"),

	"two lengths":                    answer("Content-Length: 5"),
	"two lengths that differ":        answer("content-length: 6"),
	"two lengths in one":             asking("HTTP/1.1 200 OK", "Content-Length: 5, 5"),
	"an empty length":                asking("HTTP/1.1 200 OK", "Content-Length:"),
	"a length with a plus":           asking("HTTP/1.1 200 OK", "Content-Length: +5"),
	"a length with a minus":          asking("HTTP/1.1 200 OK", "Content-Length: -5"),
	"a length in hex":                asking("HTTP/1.1 200 OK", "Content-Length: 0x5"),
	"a length with a line":           asking("HTTP/1.1 200 OK", "Content-Length: 1_0"),
	"a length with a space":          asking("HTTP/1.1 200 OK", "Content-Length: 5 5"),
	"a length in words":              asking("HTTP/1.1 200 OK", "Content-Length: five"),
	"a length with a fraction":       asking("HTTP/1.1 200 OK", "Content-Length: 5.0"),
	"a length of 16 digits":          asking("HTTP/1.1 200 OK", "Content-Length: 1000000000000000"),
	"a length of 20 digits":          asking("HTTP/1.1 200 OK", "Content-Length: 99999999999999999999"),
	"a length of no content":         asking("HTTP/1.1 204 No Content", "Content-Length: 5"),
	"a length of no content, zero":   asking("HTTP/1.1 204 No Content", "Content-Length: 0"),
	"a connection of its own":        answer("Connection: X-Mine", "X-Mine: y"),
	"a connection in a list":         answer("Connection: keep-alive, close"),
	"a connection of nothing":        answer("Connection:"),
	"a connection that is different": answer("Connection: closed"),
	"a body in chunks":               asking("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"),
	"more fields than may be":        answer(many(http1.MaxFields)...),
	"more that are not passed on":    answer(append(many(http1.MaxFields-1), "Keep-Alive: x")...),
}

// notPlainResponses are otherResponses, and those with a field that is for who knows what it means, however it is written.
func notPlainResponses() map[string]string {
	all := maps.Clone(otherResponses)
	for _, name := range []string{"TE", "Trailer", "Transfer-Encoding", "Upgrade"} {
		for _, written := range cases(name) {
			all["the field "+written] = answer(written + ": x")
		}
	}
	return all
}

func TestAPlainResponseIsTakenApart(t *testing.T) {
	t.Parallel()
	var again http1.Response // what one reads is nothing of what was read before
	for name, tc := range plainResponses {
		for _, rest := range []string{"", "12345", tc.head, "\n", "\r\n\r\n", "\x00\xff"} {
			for bodiless, length := range map[bool]int64{false: tc.want.length, true: 0} {
				b := []byte(tc.head + rest)
				size, err := again.Read(b, bodiless)
				require.NoError(t, err, name)
				require.Equal(t, len(tc.head), size, name)
				require.Equal(t, tc.head+rest, string(b), "%s: what was read is as it was", name)
				require.Equal(t, told{tc.want.status, length, tc.want.closes, tc.want.fields}, told{again.Status, again.Length, again.Close, texts(again.Fields)}, name)
			}
		}
	}
}

func TestAPlainResponseIsShortUntilItIsWhole(t *testing.T) {
	t.Parallel()
	for name, tc := range plainResponses {
		for end := range len(tc.head) {
			for _, bodiless := range []bool{false, true} {
				size, err := new(http1.Response).Read([]byte(tc.head[:end]), bodiless)
				require.ErrorIs(t, err, http1.ErrShort, "%s: %q", name, tc.head[:end])
				require.Zero(t, size)
			}
		}
	}
}

func TestAResponseThatIsNotPlainIsLeftToOthers(t *testing.T) {
	t.Parallel()
	for name, head := range notPlainResponses() {
		for _, bodiless := range []bool{false, true} {
			var r http1.Response
			size, err := r.Read([]byte(head), bodiless)
			require.ErrorIs(t, err, http1.ErrOther, name)
			require.Zero(t, size, name)
			for end := range len(head) {
				_, err := r.Read([]byte(head[:end]), bodiless)
				require.Error(t, err, "%s is not plain before it is whole, either: %q", name, head[:end])
			}
		}
	}
}

func TestAResponseSaysItsLengthUnlessNothingFollows(t *testing.T) {
	t.Parallel()
	for name, head := range bodilessResponses {
		var r http1.Response
		_, err := r.Read([]byte(head), false)
		require.ErrorIs(t, err, http1.ErrOther, name)
		size, err := r.Read([]byte(head+"x"), true)
		require.NoError(t, err, name)
		require.Equal(t, len(head), size, name)
		require.Zero(t, r.Length, name)
	}
}

func TestAResponseHasSoManyFields(t *testing.T) {
	t.Parallel()
	var r http1.Response
	_, err := r.Read([]byte(answer(many(http1.MaxFields-1)...)), false)
	require.NoError(t, err)
	require.Len(t, r.Fields, http1.MaxFields)
}

func TestAPlainResponseCostsNoMemory(t *testing.T) {
	head := []byte(answer("Content-Type: text/plain", "Connection: keep-alive"))
	r := http1.Response{Fields: make([]http1.Field, 0, http1.MaxFields)}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := r.Read(head, false); err != nil {
			t.Error(err)
		}
	}))
}
