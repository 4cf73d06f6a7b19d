package cli

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

func TestManifestOfCredentialsNeedsNoServer(t *testing.T) {
	t.Parallel()
	curve, err := nkeys.CreateCurveKeys()
	require.NoError(t, err)
	seed, err := curve.Seed()
	require.NoError(t, err)
	public, err := curve.PublicKey()
	require.NoError(t, err)
	credentials := natsauth.AgentCredentials{
		ServerURLs: []string{"tls://nats.example:4223"}, Cell: "local", AgentID: 42,
		Token: natsauth.NewToken(natsauth.TokenAgent), CurveSeed: string(seed), SealerKey: public,
	}
	file := filepath.Join(t.TempDir(), "credentials.json")
	require.NoError(t, natsauth.WriteAgentCredentials(file, credentials))
	var out bytes.Buffer
	require.Zero(t, Run(t.Context(), []string{
		"agent", "manifest", "--credentials", file, "--relay-url", "wss://relay.example:8443",
	}, &out, t.Output(), "v7"))
	require.Contains(t, out.String(), "name: lockstep-agent-42\n")
	require.Contains(t, out.String(), credentials.Token)
	require.Contains(t, out.String(), "- {protocol: TCP, port: 4223}\n")
	require.Contains(t, out.String(), "- {protocol: TCP, port: 8443}\n")
	require.Contains(t, out.String(), "image: lockstep/relay-agent:v7\n")
}

func TestManifestRefusesContradictoryFlags(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"name the agent or give its --credentials":  {},
		"--register and --project belong together":  {"east", "--register"},
		"the relay agent needs --relay-url":         {"east", "--component", "relay-agent"},
		`"http://relay" is not wss://host:port`:     {"east", "--relay-url", "http://relay"},
		`--component "gateway" is not one of`:       {"east", "--component", "gateway"},
		"--register needs the name of the agent":    {"--credentials", "x", "--register", "--project", "4"},
		"--credentials: agent credentials: open no": {"--credentials", "no"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, 2, Run(t.Context(), append([]string{"agent", "manifest"}, args...), io.Discard, &stderr, "v7"))
		require.Contains(t, stderr.String(), want)
	}
}
