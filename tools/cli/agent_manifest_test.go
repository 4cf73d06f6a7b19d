package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
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
		Token: natsauth.NewToken(natsauth.TokenAgent), CurveSeed: string(seed), SealerKey: public, NamespacePrefix: "dev-",
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
	require.Contains(t, out.String(), "request.name.startsWith('dev-')")
}

func TestManifestForAnUpgradeHasTheNamespacePrefixOfTheCell(t *testing.T) {
	t.Parallel()
	code, stdout, stderr, _ := withRegistry(t, "agent", "manifest", "7")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "request.name.startsWith('dev-')")
	require.Contains(t, stdout, `{name: LOCKSTEP_NAMESPACE_PREFIX, value: "dev-"}`)
	require.NotContains(t, stdout, "kind: Secret")
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

// fakeRegistry registers agents, with the address of NATS that a misconfigured state service has.
type fakeRegistry struct {
	statev1connect.UnimplementedAgentServiceHandler

	registered atomic.Int64
}

func (f *fakeRegistry) RegisterAgent(
	context.Context, *connect.Request[statev1.RegisterAgentRequest],
) (*connect.Response[statev1.RegisterAgentResponse], error) {
	f.registered.Add(1)
	return connect.NewResponse(&statev1.RegisterAgentResponse{
		Agent: &statev1.Agent{Id: 7}, Token: "the-token", NatsUrls: []string{"nats.example:4223"}, Cell: "local",
	}), nil
}

func (f *fakeRegistry) GetAgent(
	_ context.Context, r *connect.Request[statev1.GetAgentRequest],
) (*connect.Response[statev1.GetAgentResponse], error) {
	return connect.NewResponse(&statev1.GetAgentResponse{
		Agent: &statev1.Agent{Id: r.Msg.GetId(), NamespacePrefix: "dev-"},
	}), nil
}

// register runs agent manifest --register against a fake API.
func register(t *testing.T, args ...string) (code int, stdout, stderr string, agents *fakeRegistry) {
	t.Helper()
	return withRegistry(t, append([]string{"agent", "manifest", "east", "--register", "--project", "4"}, args...)...)
}

// withRegistry runs a command against a fake API.
func withRegistry(t *testing.T, args ...string) (code int, stdout, stderr string, agents *fakeRegistry) {
	t.Helper()
	agents = &fakeRegistry{}
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewAgentServiceHandler(agents))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(natsauth.NewToken(natsauth.TokenPersonal)), 0o600))
	var out, errs bytes.Buffer
	code = Run(t.Context(), append(args, "--server", server.URL, "--token-file", token), &out, &errs, "v7")
	return code, out.String(), errs.String(), agents
}

func TestWrongFlagRegistersNoAgent(t *testing.T) {
	t.Parallel()
	noPEM := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(noPEM, []byte("no certificate"), 0o600))
	for want, args := range map[string][]string{
		`--nats-port "nats" is not a port`:                             {"--nats-port", "nats"},
		`--nats-port "0" is not a port`:                                {"--nats-port", "0"},
		`"wss://relay:99999": the port is not from 1 to 65535`:         {"--relay-url", "wss://relay:99999"},
		"--relay-agent-ca-file: " + noPEM + " contains no certificate": {"--relay-agent-ca-file", noPEM},
		"--relay-agent-ca-file: read CA certificates: open":            {"--relay-agent-ca-file", noPEM + ".none"},
	} {
		code, stdout, stderr, agents := register(t, args...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, want)
		require.Empty(t, stdout)
		require.Zero(t, agents.registered.Load(), want)
	}
}

func TestCredentialsOfRegisteredAgentArePrintedInAnyCase(t *testing.T) {
	t.Parallel()
	code, stdout, stderr, agents := register(t)
	require.Zero(t, code, stderr)
	require.EqualValues(t, 1, agents.registered.Load())
	require.Contains(t, stdout, "the-token")
	require.Contains(t, stdout, "- {protocol: TCP, port: 4222}\n")
	require.Contains(t, stderr, `"nats.example:4223" is not tls://host:port`)
}

func TestUnwritableCredentialsFileRegistersNobody(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "none", "credentials.json")
	for _, command := range [][]string{
		{"agent", "register", "east", "--project", "4"}, {"subscriber", "create", "east"},
	} {
		code, _, stderr, registry := withRegistry(t, append(command, "--credentials", file)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "--credentials: open "+file)
		require.Zero(t, registry.registered.Load())
	}
}
