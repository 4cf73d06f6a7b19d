package tunnel_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/coder/websocket"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/agent/sshserver"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/signin/signintest"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cell    = topology.Cell("local")
	timeout = time.Minute
	owner   = 9
	agentID = 7
	// The workspace and its zone.
	id         = "0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa"
	zone       = "ws.test"
	signInHost = "https://sign-in." + zone
	hello      = "https://3000--hello." + zone
	terminal   = "https://22--hello." + zone
	// secret that services sign their tokens for the relay with.
	secret = "a secret of more than thirty-two bytes"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a gateway in one network, and a relay agent with the workspace hello in another. The relay is between
// them. The names of Services resolve in the network of the relay agent only.
type fixture struct {
	*testing.T

	dir      string
	server   *natsd.Server
	js       jetstream.JetStream
	revision int
	gateway  stack.GatewayKeys
	keys     stack.RelayKeys
	// services are the addresses of the workspace by the names of its Services.
	services map[string]string
	relay    map[string]string
	front    map[string]string
	issuer   string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, dir: t.TempDir(), services: map[string]string{}}
	report, err := natsauth.Init(f.dir, natsauth.Options{})
	require.NoError(t, err)
	f.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(f.dir, "store")})
	seed, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(f.dir, natsauth.PrincipalState))
	require.NoError(t, err)
	f.js = natstest.JetStream(t, f.server, seed, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalState)))
	require.NoError(t, topology.Ensure(natstest.Context(t), f.js, cell, topology.Options{StorageBytes: 1 << 30}))
	f.gateway, _, err = stack.InitGateway(f.dir)
	require.NoError(t, err)
	f.keys, _, err = stack.InitRelay(f.dir)
	require.NoError(t, err)
	f.startWorkspace()
	f.startRelay()
	f.startRelayAgent()
	f.startGateway()
	f.publish(cell.Directory("user", strconv.Itoa(owner)), events.DirectoryUser{
		UserID: owner, UsernameHash: directory.HashUsername(signintest.Login), State: events.UserStateActive,
	})
	f.workspace(events.ActualStateRunning)
	return f
}

func (f *fixture) publish(subject string, data any) {
	f.Helper()
	f.revision++
	raw, err := json.Marshal(data)
	require.NoError(f, err)
	m := natsgo.NewMsg(subject)
	m.Data = raw
	m.Header.Set(topology.RevisionHeader, strconv.Itoa(f.revision))
	_, err = f.js.PublishMsg(natstest.Context(f), m)
	require.NoError(f, err)
}

func (f *fixture) workspace(state events.ActualState) {
	f.Helper()
	f.publish(cell.AccessWorkspace(id), events.AccessWorkspace{
		WorkspaceID: id, Name: "hello", Namespace: "ws-7-hello", ProjectID: 4, AgentID: agentID, UserID: owner,
		ActualState: state,
	})
}

// startWorkspace starts a program at port 3000 of the workspace, and its agent.
func (f *fixture) startWorkspace() {
	f.Helper()
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = fmt.Fprintf(w, "%s of %s for %s", r.URL.Path, r.Host, r.Header.Get("X-Forwarded-Proto"))
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		for {
			kind, text, err := conn.Read(r.Context())
			if err != nil || conn.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	}))
	f.Cleanup(program.Close)
	f.services["hello.ws-7-hello.svc:3000"] = program.Listener.Addr().String()
	raw, err := os.ReadFile(f.gateway.AuthorityFile)
	require.NoError(f, err)
	authorities, err := authority.Parse(raw)
	require.NoError(f, err)
	home := f.TempDir()
	hostKey, err := sshserver.HostKey(filepath.Join(home, ".lockstep"))
	require.NoError(f, err)
	server := sshserver.New(sshserver.Options{
		Workspace: id, HostKey: hostKey, Home: home, StateFolder: filepath.Join(home, ".lockstep"),
		Environ: []string{"PATH=" + os.Getenv("PATH")}, Logger: slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) {
			key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(authorities.PublicKey()))
			return []ssh.PublicKey{key}, err
		},
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	f.services["hello.ws-7-hello.svc:60022"] = listener.Addr().String()
	f.run("the agent of the workspace", nil, func(ctx context.Context) error { return server.Serve(ctx, listener) })
}

// run runs a program until the test ends. It waits until it is ready.
func (f *fixture) run(name string, cfg *service.Config, main func(ctx context.Context) error) map[string]string {
	f.Helper()
	ready, ended := make(chan map[string]string, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	if cfg == nil {
		ready <- nil
	} else {
		cfg.OnReady = func(addresses map[string]string) { ready <- addresses }
	}
	go func() { ended <- main(ctx) }()
	f.Cleanup(func() {
		cancel()
		require.NoError(f, <-ended, name)
	})
	select {
	case addresses := <-ready:
		return addresses
	case err := <-ended:
		ended <- err
		require.FailNow(f, name+" ended", "%v", err)
	case <-time.After(timeout):
		require.FailNow(f, name+" is not ready")
	}
	return nil
}

func (f *fixture) write(name, text string) string {
	f.Helper()
	file := filepath.Join(f.dir, name)
	require.NoError(f, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func (f *fixture) startRelay() {
	f.Helper()
	cfg := relay.DefaultConfig()
	cfg.Ops.Listen, cfg.Telemetry.Out = "127.0.0.1:0", io.Discard
	for _, listener := range []*service.Listener{&cfg.Agents.Listener, &cfg.External.Listener, &cfg.Internal.Listener} {
		listener.Listen = "127.0.0.1:0"
		listener.TLS.CertFile, listener.TLS.KeyFile = f.keys.CertFile, f.keys.KeyFile
	}
	cfg.NATS.URL = config.URL(f.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(f.dir, natsauth.PrincipalRelay))
	cfg.Internal.SecretFile, cfg.Internal.CAFile = config.SecretFile(f.keys.SecretFile), f.keys.CertFile
	cfg.Registry.Lease = timeout
	cfg.External.SecretFile = config.SecretFile(f.write("external.secret", secret))
	cfg.External.CallersFile = f.write("callers.yaml",
		"callers: [{subject: gateway, all_agents: true, workspaces: true}]")
	require.Empty(f, cfg.Validate())
	f.relay = f.run("relay", &cfg.Config, func(ctx context.Context) error { return relay.Main(ctx, cfg) })
}

func (f *fixture) startRelayAgent() {
	f.Helper()
	curve, err := nkeys.CreateCurveKeys()
	require.NoError(f, err)
	seed, err := curve.Seed()
	require.NoError(f, err)
	public, err := curve.PublicKey()
	require.NoError(f, err)
	token := natsauth.NewToken(natsauth.TokenAgent)
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	require.NoError(f, err)
	f.publish(cell.Directory("agent", strconv.Itoa(agentID)), events.DirectoryAgent{
		AgentID: agentID, ProjectID: 4, TokenHash: hex.EncodeToString(hash[:]),
	})
	// A target that is configured, but not for the gateway.
	f.publish(cell.ControlConfig(agentID), events.AgentConfig{
		ConfigRevision: 1, FullResyncIntervalMs: 3_600_000, UnschedulablePatienceMs: 1,
		RelayTargets: []events.RelayTarget{{Name: "shop", Address: f.services["hello.ws-7-hello.svc:3000"]}},
	})
	cfg := agent.DefaultConfig()
	cfg.Ops.Listen, cfg.Telemetry.Out = "127.0.0.1:0", io.Discard
	cfg.CredentialsFile = filepath.Join(f.dir, "agent.json")
	require.NoError(f, natsauth.WriteAgentCredentials(cfg.CredentialsFile, natsauth.AgentCredentials{
		ServerURLs: []string{"nats://127.0.0.1:1"}, Cell: cell, AgentID: agentID, Token: token, CurveSeed: string(seed),
		SealerKey: public,
	}))
	cfg.Kubernetes.Enabled = false
	cfg.Relay.URLs, cfg.Relay.TLS.CAFile = []string{"wss://" + f.relay[stack.ListenerAgents]}, f.keys.CertFile
	cfg.Targets.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		reached, known := f.services[address]
		if !known {
			return nil, fmt.Errorf("there is no Service %s", address)
		}
		return new(net.Dialer).DialContext(ctx, network, reached)
	}
	f.run("relay agent", &cfg.Config, func(ctx context.Context) error { return agent.Main(ctx, cfg) })
}

// gatewayToken is the token of the gateway for the relay.
func (f *fixture) gatewayToken() string {
	f.Helper()
	signer, err := auth.NewSigner(auth.Config{
		Issuer: "lockstep", Audience: "relay", Secrets: [][]byte{[]byte(secret)}, Lifetime: time.Hour,
	})
	require.NoError(f, err)
	token, err := signer.Sign("gateway")
	require.NoError(f, err)
	return token
}

func (f *fixture) startGateway() {
	f.Helper()
	cfg := gateway.DefaultConfig()
	cfg.Ops.Listen, cfg.Web.Listen, cfg.SSH.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Telemetry.Out = io.Discard
	cfg.Zone = zone
	cfg.Web.TLS.CertFile, cfg.Web.TLS.KeyFile = f.keys.CertFile, f.keys.KeyFile
	cfg.NATS.URL = config.URL(f.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(f.dir, natsauth.PrincipalGateway))
	cfg.SSH.HostKeyFile = config.SecretFile(f.gateway.HostFile)
	cfg.SignIn.KeysFile = config.SecretFile(f.gateway.CookiesFile)
	cfg.SignIn.PersonKeyFile = config.SecretFile(f.gateway.PersonFile)
	f.issuer = signintest.StartProvider(f, signInHost+"/callback")
	cfg.SignIn.Issuer, cfg.SignIn.ClientID = f.issuer, signintest.ClientID
	cfg.SignIn.ClientSecretFile = config.SecretFile(f.write("client.secret", signintest.ClientSecret))
	cfg.Workspaces.AuthorityKeyFile = config.SecretFile(f.gateway.AuthorityFile)
	cfg.Workspaces.Mode = gateway.ModeTunnel
	cfg.Relay.URL, cfg.Relay.CAFile = "https://"+f.relay[stack.ListenerExternal], f.keys.CertFile
	cfg.Relay.TokenFile = config.SecretFile(f.write("relay.token", f.gatewayToken()))
	require.Empty(f, cfg.Validate())
	f.front = f.run("gateway", &cfg.Config, func(ctx context.Context) error { return gateway.Main(ctx, cfg) })
}

// signedIn is a browser of the owner, who has opened the workspace.
func (f *fixture) signedIn() *signintest.Browser {
	f.Helper()
	var b *signintest.Browser
	require.Eventually(f, func() bool { // the gateway reads the provider and the workspace
		b = signintest.NewBrowser(f, zone, f.front["web"], f.issuer)
		response, _ := b.Get(hello + "/")
		return response.StatusCode == http.StatusOK && response.Request.URL.Host != "3000--hello."+zone
	}, timeout, 10*time.Millisecond)
	response, body := b.SignInAt(hello + "/")
	require.Equal(f, http.StatusOK, response.StatusCode, body)
	return b
}

func (f *fixture) webSocket(b *signintest.Browser, url, origin string) *websocket.Conn {
	f.Helper()
	conn, response, err := websocket.Dial(f.Context(), url, &websocket.DialOptions{
		HTTPClient: b.Client, HTTPHeader: http.Header{"Origin": {origin}},
	})
	if response != nil && response.Body != nil {
		f.Cleanup(func() { _ = response.Body.Close() })
	}
	require.NoError(f, err)
	f.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// sshClient connects with a registered key of the owner.
func (f *fixture) sshClient() *ssh.Client {
	f.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(f, err)
	fingerprint := access.Fingerprint(signer.PublicKey())
	f.publish(cell.AccessSSHKey(fingerprint), events.AccessSSHKey{Fingerprint: fingerprint, UserID: owner})
	var client *ssh.Client
	require.Eventually(f, func() bool {
		client, err = ssh.Dial("tcp", f.front["ssh"], &ssh.ClientConfig{
			User: "hello", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
		return err == nil
	}, timeout, 10*time.Millisecond)
	f.Cleanup(func() { _ = client.Close() })
	return client
}
