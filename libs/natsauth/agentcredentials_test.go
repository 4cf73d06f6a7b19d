package natsauth_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
)

func someCredentials(t *testing.T) natsauth.AgentCredentials {
	t.Helper()

	pair, err := nkeys.CreateCurveKeys()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)

	return natsauth.AgentCredentials{
		ServerURLs: []string{"nats://127.0.0.1:4222", "tls://nats.example:4222"}, Cell: "local", AgentID: 17,
		Token: natsauth.NewToken(natsauth.TokenAgent), CurveSeed: string(seed), SealerKey: public, NamespacePrefix: "dev-",
	}
}

func TestCredentialsWithoutNamespacePrefixHaveTheDefault(t *testing.T) {
	t.Parallel()

	credentials := someCredentials(t)
	credentials.NamespacePrefix = ""
	content, err := json.Marshal(credentials)
	require.NoError(t, err)
	got, err := natsauth.ParseAgentCredentials(content)
	require.NoError(t, err)
	require.Equal(t, "ws-", got.NamespacePrefix)
	credentials.NamespacePrefix = "Dev_"
	require.ErrorContains(t, credentials.Validate(), `namespace_prefix "Dev_" is not a prefix of a namespace name`)
}

func TestAgentCredentialsFile(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "agent.json")
	want := someCredentials(t)
	require.NoError(t, os.WriteFile(path, []byte("something old, readable by all"), 0o644))
	require.NoError(t, natsauth.WriteAgentCredentials(path, want))

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	got, err := natsauth.ReadAgentCredentials(path)
	require.NoError(t, err)
	require.Equal(t, want, got)

	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file stays")
}

func TestAgentCredentialsFaults(t *testing.T) {
	t.Parallel()

	for name, spoil := range map[string]func(*natsauth.AgentCredentials){
		"server_urls is empty": func(c *natsauth.AgentCredentials) { c.ServerURLs = nil },
		"contains a user":      func(c *natsauth.AgentCredentials) { c.ServerURLs = []string{"nats://u:p@host:1"} },
		"some of the URLs are of": func(c *natsauth.AgentCredentials) {
			c.ServerURLs = []string{"wss://nats.example", "nats://nats.example"}
		},
		"is not nats://":          func(c *natsauth.AgentCredentials) { c.ServerURLs = []string{"http://host"} },
		"contains an invalid URL": func(c *natsauth.AgentCredentials) { c.ServerURLs = []string{"nats://%zz"} },
		"cell":                    func(c *natsauth.AgentCredentials) { c.Cell = "a.b" },
		"agent_id":                func(c *natsauth.AgentCredentials) { c.AgentID = 0 },
		"token":                   func(c *natsauth.AgentCredentials) { c.Token = "lsa_x" },
		"curve_seed":              func(c *natsauth.AgentCredentials) { c.CurveSeed = c.SealerKey },
		"sealer_key":              func(c *natsauth.AgentCredentials) { c.SealerKey = c.CurveSeed },
		"ca holds no PEM":         func(c *natsauth.AgentCredentials) { c.CA = "x" },
		"agent_id -1 is not ab":   func(c *natsauth.AgentCredentials) { c.AgentID = -1 },
	} {
		c := someCredentials(t)
		seed := c.CurveSeed
		spoil(&c)
		err := c.Validate()
		require.ErrorIs(t, err, natsauth.ErrInvalidCredentials, name)
		require.ErrorContains(t, err, name)
		require.NotContains(t, err.Error(), seed)

		_, err = c.ConnectOptions()
		require.ErrorIs(t, err, natsauth.ErrInvalidCredentials, name)
		require.ErrorIs(t, natsauth.WriteAgentCredentials(filepath.Join(t.TempDir(), "f"), c), natsauth.ErrInvalidCredentials)
	}

	err := natsauth.AgentCredentials{}.Validate()
	require.Len(t, strings.Split(err.Error(), "\n"), 6, "all faults at once: %s", err)

	_, err = natsauth.ReadAgentCredentials(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestEachConnectionReadsTheTokenFromTheFile(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "agent.json")
	first := someCredentials(t)
	require.NoError(t, natsauth.WriteAgentCredentials(path, first))
	set, err := first.ConnectOptionsFrom(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	var options nats.Options
	for _, o := range set {
		require.NoError(t, o(&options))
	}

	requireToken := func(want string) {
		t.Helper()

		user, token := options.UserInfo()
		require.Equal(t, "17", user)
		require.Equal(t, want, token)
	}
	requireToken(first.Token)

	second := first
	second.Token = natsauth.NewToken(natsauth.TokenAgent)
	require.NoError(t, natsauth.WriteAgentCredentials(path, second))
	requireToken(second.Token)

	another := someCredentials(t)
	another.AgentID = 18
	require.NoError(t, natsauth.WriteAgentCredentials(path, another))
	requireToken(second.Token)
	require.NoError(t, os.Remove(path))
	requireToken(second.Token)
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()

	agent := someCredentials(t)
	presented := natsauth.Credentials{User: "17", Password: agent.Token, Token: agent.CurveSeed, JWT: agent.CurveSeed}

	var out bytes.Buffer

	logger := slog.New(slog.NewJSONHandler(&out, nil))
	for _, value := range []any{agent, presented, []any{presented}} {
		logger.Info("value", slog.Any(logkey.Client, value))
	}
	fmt.Fprintf(&out, "%v %+v %#v %s", agent, agent, agent, agent)
	fmt.Fprintf(&out, "%v %+v %#v %s", presented, presented, presented, presented)
	require.Contains(t, out.String(), "17")
	require.NotContains(t, out.String(), agent.Token)
	require.NotContains(t, out.String(), agent.CurveSeed)
}

func FuzzParseAgentCredentials(f *testing.F) {
	f.Add([]byte(`{"server_urls":["nats://a:1"],"cell":"local","agent_id":1}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		if c, err := natsauth.ParseAgentCredentials(content); err == nil {
			require.NoError(t, c.Validate())
		}
	})
}
