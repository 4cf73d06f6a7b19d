package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/logkey"
)

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Bytes{
		"0": 0, "512": 512, "1b": 1, "256KiB": 256 << 10, "10MB": 10_000_000, "1kb": 1000, "2gib": 2 << 30,
		"3TB": 3e12, "1TiB": 1 << 40,
		"9223372036854775807": math.MaxInt64,
	} {
		got, err := config.ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "KiB", "-1", "+1", "1.5GiB", "1e3", "1 K iB", "1KiBs", "9223372036854775808", "8388608TiB", "1_000", "٣",
	} {
		_, err := config.ParseBytes(text)
		require.Error(t, err, text)
	}
	blanks, err := config.ParseBytes(" 1 MiB ")
	require.NoError(t, err)
	require.Equal(t, config.MiB, blanks)
	for size, want := range map[config.Bytes]string{
		0:       "0",
		1:       "1",
		1023:    "1023",
		1024:    "1KiB",
		1 << 20: "1MiB",
		1025:    "1025",
		3 << 40: "3TiB",
		1e6:     "1000000",
	} {
		require.Equal(t, want, size.String())
	}
}

func FuzzBytes(f *testing.F) {
	for _, seed := range []string{"0", "256KiB", "8388607TiB", "1.5", "99999999999999999999", "1 mb"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := config.ParseBytes(text)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, size, config.Bytes(0))
		again, err := config.ParseBytes(size.String())
		require.NoError(t, err)
		require.Equal(t, size, again)
	})
}

// FuzzLayers checks that no text in any layer causes a panic or prints a secret.
func FuzzLayers(f *testing.F) {
	f.Add("name: x\nserver: {url: y}\n", "LOCKSTEP_MAP", "a=b,c", "--list=x")
	f.Add("a: &a [*a]", "LOCKSTEP_SERVER_TLS_ON", "maybe", "--size=1KiB")
	f.Add("server: &s {tls: *s}", "LOCKSTEP_", "\x00", "-h")
	f.Add("? [a]\n: b\n", "LOCKSTEP_TIMEOUT", "1h", "---")
	f.Add("net: 1\nmap: {~: ~}", "LOCKSTEP_NET", "::/0", "--=")
	f.Fuzz(func(t *testing.T, file, name, value, arg string) {
		if strings.HasPrefix(name, "LOCKSTEP_CONFIG") || strings.HasPrefix(arg, "--config") ||
			strings.Contains(name, "FILE") || strings.Contains(arg, "file") || strings.Contains(file, "file") {
			return // these read files of this machine
		}
		cfg := defaults()
		binding, err := config.Bind(&cfg, "")
		require.NoError(t, err)
		_ = binding.ApplyFile("fuzz.yaml", []byte(file))
		stdout, _, err := load(&cfg, []string{arg}, []string{name + "=" + value})
		require.NotContains(t, stdout, "sesame")
		if err != nil {
			require.NotContains(t, err.Error(), "sesame")
		}
	})
}

func TestSecret(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	secret := config.SecretFile(path)
	for text, want := range map[string]string{"sesame": "sesame", "sesame\n": "sesame", "a \nb \r\n": "a \nb "} {
		write(text)
		value, err := secret.Read()
		require.NoError(t, err)
		require.Equal(t, want, value, "each Read reads the file")
	}
	for text, want := range map[string]string{
		"":                           "is empty",
		"\n":                         "is empty",
		strings.Repeat("x", 1<<20+1): "larger than 1 MiB",
	} {
		write(text)
		_, err := secret.Read()
		require.ErrorContains(t, err, want)
		require.Len(t, secret.Validate(), 1)
	}
	_, err := config.Secret{}.Read()
	require.ErrorContains(t, err, "not set")
	require.Empty(t, config.Secret{}.Validate())
	require.Equal(t, path, secret.Path())
	value, err := config.SecretValue("sesame").Read()
	require.NoError(t, err)
	require.Equal(t, "sesame", value)
	require.True(t, config.SecretValue("").IsSet())
}

// holder has an unexported field: fmt cannot call the methods of its value.
type holder struct {
	secret config.Secret
	Public config.Secret `json:"public"`
	URL    config.URL    `json:"url"`
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	secret := config.SecretValue("sesame")
	h := holder{secret, secret, "nats://ada:sesame@host"}
	raw, err := json.Marshal(h)
	require.NoError(t, err)
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		for _, value := range []any{secret, h.URL, h, &h} {
			slog.New(handler).Info("x", slog.Any(logkey.Key, value))
		}
	}
	printed := string(raw) + log.String() + fmt.Sprintf("%v %+v %#v %s %q %v %+v", h, h, h, secret, secret, &h, []any{h})
	require.NotContains(t, printed, "sesame")
}

func TestURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[config.URL]string{
		"":                                   "",
		"127.0.0.1:4222":                     "127.0.0.1:4222",
		"nats://a:4222,tls://b":              "nats://a:4222,tls://b",
		"nats://sesame@a":                    "nats://xxxxx@a",
		"nats://ada:sesame@a, nats://b":      "nats://ada:xxxxx@a, nats://b",
		"postgres://ada@a/db":                "postgres://ada@a/db",
		"postgres://ada:sesame@a/db?x=1":     "postgres://ada:xxxxx@a/db?x=1",
		"postgres://a/db?password=sesame":    "postgres://a/db?password=xxxxx",
		"host=a password=sesame":             "(hidden)",
		"ada:sesame@host":                    "(hidden)",
		"nats://ada:ses,ame@a":               "(hidden)",
		"nats://ada:ses/ame@a":               "(hidden)",
		"nats://ada:ses%ame@a":               "(hidden)",
		"postgres://ada:sesame@a,b/db":       "(hidden)",
		"https://a/?api_token=sesame&page=1": "https://a/?api_token=xxxxx&page=1",
	} {
		require.Equal(t, want, text.String(), text.Reveal())
	}
}

func FuzzURLHidesThePassword(f *testing.F) {
	f.Add("nats", "ada", "host")
	f.Add("postgres", "", "a,b/db?x=y")
	f.Fuzz(func(t *testing.T, scheme, user, host string) {
		const password = "open5e5ame"
		text := scheme + "://" + user + ":" + password + "@" + host
		require.NotContains(t, config.URL(text).String(), password, "%q", text)
	})
}
