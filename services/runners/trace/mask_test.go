package trace_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"hash/crc32"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/trace"
)

// send appends the chunks and ends the trace. It returns what is stored.
func send(t *testing.T, mask *trace.Mask, chunks ...string) string {
	t.Helper()
	var s trace.State
	var stored []byte
	var received string
	for _, chunk := range chunks {
		next, w, err := s.Append(mask, s.Size, []byte(chunk), trace.DefaultLimit)
		require.NoError(t, err)
		require.Equal(t, int64(len(stored)), w.Offset)
		stored, received = append(stored, w.Data...), received+chunk
		require.Equal(t, int64(len(received)), next.Size)
		require.Equal(t, int64(len(stored)), next.Visible().Size)
		s = next
	}
	report := trace.Report{Checked: true, CRC: crc32.ChecksumIEEE([]byte(received)), Size: int64(len(received))}
	s, w, done, err := s.Finish(mask, report)
	require.NoError(t, err)
	require.True(t, done)
	require.True(t, s.Verified)
	stored = append(stored, w.Data...)
	require.Len(t, stored, len(received), "masking changes no offset")
	require.Equal(t, int64(len(stored)), s.Visible().Size)
	return string(stored)
}

func TestMaskedValuesAreReplacedWhereverTheyAreSplit(t *testing.T) {
	t.Parallel()
	const secret, text = "s3cr3t-value", "token s3cr3t-value and s3cr3t-value\ns3cr3t-val\n"
	const want = "token ************ and ************\ns3cr3t-val\n"
	mask := trace.NewMask([]string{secret})
	require.True(t, mask.Masks())
	for i := range len(text) {
		for j := i; j < len(text); j++ {
			require.Equal(t, want, send(t, mask, text[:i], text[i:j], text[j:]))
		}
	}
	var single []string
	for _, c := range text {
		single = append(single, string(c))
	}
	require.Equal(t, want, send(t, mask, single...))
}

func TestHeldBytesAreNotStored(t *testing.T) {
	t.Parallel()
	mask := trace.NewMask([]string{"s3cr3t-value"})
	s, w, err := trace.State{}.Append(mask, 0, []byte("token s3cr3t-val"), trace.DefaultLimit)
	require.NoError(t, err)
	require.Equal(t, "token ", string(w.Data))
	require.Equal(t, int64(16), s.Size)
	require.Equal(t, trace.Held{Length: 10}, s.Held)
	require.Equal(t, trace.Generation{Size: 6}, s.Visible())

	_, w, _, err = s.Finish(mask, trace.Report{})
	require.NoError(t, err)
	require.Equal(t, "**********", string(w.Data), "most of a value is masked at the end of the trace")
}

func TestOverlappingValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		values     []string
		text, want string
	}{
		{[]string{"xab", "abcd"}, "xabce", "***ce"},
		{[]string{"xab", "abcd"}, "xabcd!", "*****!"},
		{[]string{"aa"}, "baaab", "b***b"},
		{[]string{"abab"}, "abababab-abab", "********-****"},
		{[]string{"aabaa"}, "aabaabaa-aabaaabaa", "********-*********"},
		{[]string{"secret", "secret-longer"}, "secret-longer secret-long", "************* ***********"},
		{[]string{"", "x"}, "yxy", "y*y"},
		{[]string{"ab", "b"}, "cbab", "c***"},
		{nil, "nothing", "nothing"},
	} {
		mask := trace.NewMask(test.values)
		for i := range len(test.text) + 1 {
			for j := i; j <= len(test.text); j++ {
				got := send(t, mask, test.text[:i], test.text[i:j], test.text[j:])
				require.Equal(t, test.want, got, "%q split at %d and %d", test.text, i, j)
			}
		}
	}
}

func TestEncodingsAreMasked(t *testing.T) {
	t.Parallel()
	const secret = "p@ss\nw\"rd/ä?>~"
	quoted, err := json.Marshal(secret)
	require.NoError(t, err)
	mask := trace.NewMask([]string{secret})
	for name, encoded := range map[string]string{
		"CRLF": strings.ReplaceAll(secret, "\n", "\r\n"), "JSON": string(quoted[1 : len(quoted)-1]),
		"query": url.QueryEscape(secret), "path": url.PathEscape(secret),
	} {
		require.Equal(t, "<"+strings.Repeat("*", len(encoded))+">", send(t, mask, "<"+encoded+">"), name)
	}
	for _, before := range []string{"", "a", "ab", "abc", "user:"} {
		for _, after := range []string{"", "a", "ab", "abc"} {
			for _, alphabet := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				encoded := alphabet.EncodeToString([]byte(before + secret + after))
				got := send(t, mask, encoded)
				decoded, err := alphabet.DecodeString(strings.ReplaceAll(got, "*", "A"))
				require.NoError(t, err)
				require.GreaterOrEqual(t, strings.Count(got, "*"), len(secret)*8/6-2)
				require.NotContains(t, string(decoded), secret[1:len(secret)-1])
			}
		}
	}
}

func TestShortEncodingsAreNotMasked(t *testing.T) {
	t.Parallel()
	require.Equal(t, "YWI= ** JTI=", send(t, trace.NewMask([]string{"ab"}), "YWI= ab JTI="))
}

// TestMaskingIsLinear would take hours if it were not.
func TestMaskingIsLinear(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 32<<10)
	text := strings.Repeat("a", trace.DefaultLimit)
	got := send(t, trace.NewMask([]string{long, long + "b", "b" + long}), text)
	require.Equal(t, strings.Repeat("*", len(text)), got)
}

// FuzzMask compares chunks with the whole, and the whole with a search for each value.
func FuzzMask(f *testing.F) {
	f.Add("secret", "ret-x", []byte("secret-x secret"), uint8(3), uint8(5))
	f.Add("aa", "aba", []byte("aabaaaba"), uint8(1), uint8(2))
	f.Add("", "b", []byte("abab"), uint8(0), uint8(9))
	f.Fuzz(func(t *testing.T, a, b string, text []byte, i, j uint8) {
		if len(text) > 2000 || len(a) > 200 || len(b) > 200 {
			return
		}
		mask := trace.NewMask([]string{a, b})
		first := min(int(i), len(text))
		second := min(first+int(j), len(text))
		got := send(t, mask, string(text[:first]), string(text[first:second]), string(text[second:]))
		require.Equal(t, send(t, mask, string(text)), got)
		for _, value := range []string{a, b} {
			for at := 0; value != ""; at++ {
				found := bytes.Index(text[at:], []byte(value))
				if found < 0 {
					break
				}
				at += found
				require.Equal(t, strings.Repeat("*", len(value)), got[at:at+len(value)])
			}
		}
		for k := range got {
			require.True(t, got[k] == '*' || got[k] == text[k])
		}
	})
}
