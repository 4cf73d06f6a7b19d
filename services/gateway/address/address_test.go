package address

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHostsAreParsed(t *testing.T) {
	long := strings.Repeat("w", MaxWorkspace)
	for host, want := range map[string]Target{
		"3000--hello.ws.example.com":          {"hello", 3000},
		"3000--hello.ws.example.com:443":      {"hello", 3000},
		"3000--HELLO.WS.example.com":          {"hello", 3000},
		"1--a--b.ws.example.com":              {"a--b", 1},
		"65535--" + long + ".ws.example.com":  {long, 65535},
		"65535--" + long + "w.ws.example.com": {},
		"65536--hello.ws.example.com":         {},
		"0--hello.ws.example.com":             {},
		"080--hello.ws.example.com":           {},
		"+80--hello.ws.example.com":           {},
		"--hello.ws.example.com":              {},
		"80--.ws.example.com":                 {},
		"80---hello.ws.example.com":           {},
		"80--hello-.ws.example.com":           {},
		"80--he_lo.ws.example.com":            {},
		"80--x.hello.ws.example.com":          {},
		"hello.ws.example.com":                {},
		"sign-in.ws.example.com":              {},
		"ws.example.com":                      {},
		"80--hello.ws.example.com.evil.org":   {},
		"80--hello.evilws.example.com":        {},
		"80--hello.ws.example.com@evil.org":   {},
		"":                                    {},
	} {
		got, ok := Zone("ws.example.com").Parse(host)
		require.Equal(t, want != Target{}, ok, host)
		require.Equal(t, want, got, host)
	}
}

func TestZonesAreChecked(t *testing.T) {
	for text, want := range map[string]Zone{
		"ws.example.com": "ws.example.com", "WS.Example.com": "ws.example.com", "localhost:8443": "localhost:8443",
		"": "", "ws.example.com.": "", "10.0.0.1": "", "a b": "", "x:0": "", "x:99999": "", "x:y:z": "", "::1": "",
	} {
		got, err := ParseZone(text)
		require.Equal(t, want, got, text)
		require.Equal(t, want == "", err != nil, text)
	}
}

func TestSignInHostIsNoWorkspace(t *testing.T) {
	zone := Zone("ws.localhost:8443")
	require.Equal(t, "sign-in.ws.localhost:8443", zone.SignIn())
	require.True(t, zone.IsSignIn("Sign-In.ws.localhost:8443"))
	require.True(t, zone.IsSignIn("sign-in.ws.localhost"))
	require.False(t, zone.IsSignIn("3000--sign-in.ws.localhost"))
	require.Equal(t, "3000--hello.ws.localhost:8443", zone.Host(Target{"hello", 3000}))
}

func FuzzHostsHaveOneForm(f *testing.F) {
	f.Add("3000--hello.ws.example.com")
	f.Add("3000--a--b.WS.example.com:80")
	f.Fuzz(func(t *testing.T, host string) {
		zone := Zone("ws.example.com")
		target, ok := zone.Parse(host)
		if !ok {
			return
		}
		again, ok := zone.Parse(zone.Host(target))
		require.True(t, ok)
		require.Equal(t, target, again)
		require.Equal(t, strings.ToLower(zone.trimPort(host)), zone.Host(target))
	})
}
