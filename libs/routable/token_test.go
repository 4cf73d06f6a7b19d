package routable_test

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
)

// vector is a token of GitLab's format: random bytes 0 to 15, cell 2, group 12345, organization 1, type 2, user 1.
const vector = "glrt-AAECAwQFBgcICQoLDA0OD2M6MgpnOjlpeApvOjEKdDoyCnU6MRU.01.1f09ud6oa"

func vectorPayload() routable.Payload {
	return routable.Payload{Cell: "2", Group: 12345, Organization: 1, Type: 2, User: 1}
}

func random() (bytes [16]byte) {
	for i := range bytes {
		bytes[i] = byte(i)
	}
	return bytes
}

// seal returns a token with any payload, valid or not, with the right lengths and checksum.
func seal(prefix, payload string) string {
	bytes := random()
	raw := append(append(bytes[:], payload...), byte(len(payload)))
	return sealText(prefix, base64.RawURLEncoding.EncodeToString(raw))
}

func sealText(prefix, text string) string {
	length := strconv.FormatInt(int64(len(text)), 36)
	body := prefix + text + ".01." + strings.Repeat("0", max(0, 2-len(length))) + length
	return body + crc(body)
}

func crc(body string) string {
	return fmt.Sprintf("%07s", strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte(body))), 36))
}

func TestVectorIsEncodedAndParsed(t *testing.T) {
	t.Parallel()
	text, err := routable.Encode(routable.Runner, random(), vectorPayload())
	require.NoError(t, err)
	require.Equal(t, vector, text)
	token, err := routable.Parse(vector)
	require.NoError(t, err)
	require.Equal(t, routable.Token{Prefix: routable.Runner, Payload: vectorPayload()}, token)
	require.Equal(t, vector, seal("glrt-", "c:2\ng:9ix\no:1\nt:2\nu:1"), "the helper of the tests below")
}

func TestTokensRoundTrip(t *testing.T) {
	t.Parallel()
	longest := routable.Payload{
		Cell: topology.Cell(strings.Repeat("c", 63)), Group: math.MaxInt64, Organization: math.MaxInt64,
		Project: math.MaxInt64, Type: math.MaxInt64, User: math.MaxInt64,
	}
	for _, payload := range []routable.Payload{
		{}, {Organization: 7}, {Cell: "eu-west-1"}, {Project: 36, Organization: 1}, vectorPayload(), longest,
	} {
		for _, prefix := range []routable.Prefix{routable.Runner, routable.Personal} {
			text, err := routable.New(prefix, payload)
			require.NoError(t, err)
			require.LessOrEqual(t, len(text), routable.MaxLength)
			token, err := routable.Parse(text)
			require.NoError(t, err)
			require.Equal(t, routable.Token{Prefix: prefix, Payload: payload}, token)
			again, err := routable.New(prefix, payload)
			require.NoError(t, err)
			require.NotEqual(t, text, again, "every token is random")
		}
	}
}

func TestInvalidPayloadsAreRefused(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]routable.Payload{
		"negative organization": {Organization: -1},
		"negative user":         {User: -1},
		"cell":                  {Cell: "a\no:2"},
	} {
		_, err := routable.New(routable.Runner, payload)
		require.ErrorIs(t, err, routable.ErrInvalidPayload, name)
	}
	_, err := routable.New("glpat-", routable.Payload{})
	require.ErrorIs(t, err, routable.ErrInvalidPayload)
}

func TestOtherTextsAreRefused(t *testing.T) {
	t.Parallel()
	bytes := random()
	for name, text := range map[string]string{
		"empty":                    "",
		"only a prefix":            "glrt-",
		"old runner token":         "glrt-x1Yz_4nTkq8sPEr2sWQv",
		"old personal token":       "lsp_" + strings.Repeat("a", 58),
		"unknown prefix":           seal("glpat-", "o:1"),
		"upper-case prefix":        seal("GLRT-", "o:1"),
		"only a suffix":            sealText("glrt-", ""),
		"truncated":                vector[:len(vector)-1],
		"longer":                   vector + "0",
		"changed secret":           strings.Replace(vector, "AAEC", "AAED", 1),
		"changed checksum":         vector[:len(vector)-1] + "b",
		"upper-case checksum":      vector[:len(vector)-7] + strings.ToUpper(vector[len(vector)-7:]),
		"another version":          strings.Replace(vector, ".01.", ".02.", 1),
		"wrong length, right CRC":  vector[:len(vector)-9] + "1g" + crc(vector[:len(vector)-9]+"1g"),
		"standard alphabet":        sealText("glrt-", standardAlphabet()),
		"padding":                  sealText("glrt-", base64.URLEncoding.EncodeToString(append(bytes[:], "o:1\x03"...))+"="),
		"line end in the text":     sealText("glrt-", "AAECAwQF\nBgcICQoLDA0OD286MQM"),
		"spare bits":               sealText("glrt-", spareBits()),
		"payload length":           sealText("glrt-", base64.RawURLEncoding.EncodeToString(append(bytes[:], "o:1\x04"...))),
		"no payload":               seal("glrt-", ""),
		"too few random bytes":     sealText("glrt-", base64.RawURLEncoding.EncodeToString([]byte("o:1\x03"))),
		"no organization":          seal("glrt-", "c:2"),
		"not sorted":               seal("glrt-", "o:1\nc:2"),
		"repeated key":             seal("glrt-", "o:1\no:1"),
		"repeated cell":            seal("glrt-", "c:1\nc:2\no:1"),
		"unknown key":              seal("glrt-", "o:1\nz:1"),
		"leading zero":             seal("glrt-", "o:01"),
		"sign":                     seal("glrt-", "o:+1"),
		"negative":                 seal("glrt-", "o:-1"),
		"upper-case integer":       seal("glrt-", "o:A"),
		"integer above 64 bits":    seal("glrt-", "o:1y2p0ij32e8e8"),
		"empty value":              seal("glrt-", "o:"),
		"no colon":                 seal("glrt-", "o"),
		"optional zero":            seal("glrt-", "g:0\no:1"),
		"line end at the end":      seal("glrt-", "o:1\n"),
		"empty line":               seal("glrt-", "c:2\n\no:1"),
		"cell is no DNS label":     seal("glrt-", "c:A.b\no:1"),
		"cell with a NUL":          seal("glrt-", "c:a\x00\no:1"),
		"empty cell":               seal("glrt-", "c:\no:1"),
		"too long, otherwise fine": seal("glrt-", "o:1"+strings.Repeat("\nu:1", 60)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := routable.Parse(text)
			require.ErrorIs(t, err, routable.ErrMalformed)
			if len(text) > 20 {
				require.NotContains(t, err.Error(), text[5:20], "errors do not quote tokens")
			}
		})
	}
}

// spareBits returns another base64 text of the same bytes: its last character has bits that are not used.
func spareBits() string {
	bytes := random()
	text := base64.RawURLEncoding.EncodeToString(append(bytes[:], "o:1\x03"...))
	return text[:len(text)-1] + "x"
}

// standardAlphabet returns a text with the characters that base64url replaces.
func standardAlphabet() string {
	raw := append(slices.Repeat([]byte{0xff}, 16), "o:1\x03"...)
	return base64.RawStdEncoding.EncodeToString(raw)
}

// TestLongTextsCostNothing parses a text of 1 MiB.
func TestLongTextsCostNothing(t *testing.T) {
	long := "glrt-" + strings.Repeat("A", 1<<20)
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() {
		if _, err := routable.Parse(long); err == nil {
			panic("parsed")
		}
	}), 10.0)
}

// FuzzParse checks that every accepted text is the only spelling of its content.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		vector, seal("lsp_", "o:1"), seal("glrt-", "c:eu-1\no:0\nt:1"), seal("glrt-", "o:01"), "glrt-", "",
		seal("glrt-", "c:2\no:1")[:30],
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := routable.Parse(text)
		if err != nil {
			require.ErrorIs(t, err, routable.ErrMalformed)
			return
		}
		require.LessOrEqual(t, len(text), routable.MaxLength)
		encoded := text[len(token.Prefix):strings.LastIndex(text, ".01.")]
		raw, err := base64.RawURLEncoding.DecodeString(encoded)
		require.NoError(t, err)
		again, err := routable.Encode(token.Prefix, [16]byte(raw), token.Payload)
		require.NoError(t, err)
		require.Equal(t, text, again)
	})
}

// FuzzPayload seals any payload: without it no fuzzer would find a right checksum.
func FuzzPayload(f *testing.F) {
	f.Add("c:2\ng:9ix\no:1\nt:2\nu:1")
	f.Add("o:0")
	f.Add("c:\no:1")
	f.Fuzz(func(t *testing.T, payload string) {
		if len(payload) > 200 {
			return
		}
		text := seal("glrt-", payload)
		token, err := routable.Parse(text)
		if err != nil {
			require.ErrorIs(t, err, routable.ErrMalformed)
			return
		}
		again, err := routable.Encode(token.Prefix, random(), token.Payload)
		require.NoError(t, err)
		require.Equal(t, text, again)
	})
}
