package gateway_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/persontoken"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/agent/sshserver"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/signin/signintest"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cell    = topology.Cell("local")
	soon    = time.Minute
	zone    = "ws.test"
	owner   = 9
	id      = "0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa"
	keyID   = "k"
	tokenID = 12
	// personal is a personal access token that the state service of the test knows.
	personal = "lsp_of-the-owner"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a NATS server with the permissions of production, a state service that stands for the real one, and the
// workspace hello with a real agent.
type fixture struct {
	t         *testing.T
	dir       string
	server    *natsd.Server
	js        jetstream.JetStream
	private   ed25519.PrivateKey
	authority *authority.Authority
	state     *httptest.Server
	revision  int

	mu      sync.Mutex
	started []string
	tokens  map[string]int64
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), tokens: map[string]int64{personal: owner}}
	report, err := natsauth.Init(f.dir, natsauth.Options{})
	require.NoError(t, err)
	f.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(f.dir, "store")})
	seed, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(f.dir, natsauth.PrincipalState))
	require.NoError(t, err)
	f.js = natstest.JetStream(t, f.server, seed, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalState)))
	require.NoError(t, topology.Ensure(natstest.Context(t), f.js, cell, topology.Options{StorageBytes: 1 << 30}))
	var public ed25519.PublicKey
	public, f.private, err = ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	f.publish(cell.Directory("key", keyID), events.DirectoryKey{
		Algorithm: events.KeyAlgorithmEdDSA, KeyID: keyID, PublicKey: base64.RawURLEncoding.EncodeToString(public),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	f.person(events.DirectoryUser{State: events.UserStateActive})
	for _, name := range []string{"authority", "host", "person"} {
		f.writeKey(name)
	}
	require.NoError(t, os.WriteFile(f.file("cookies"), []byte(session.GenerateKey()+"\n"), 0o600))
	raw, err := os.ReadFile(f.file("authority"))
	require.NoError(t, err)
	f.authority, err = authority.Parse(raw)
	require.NoError(t, err)
	f.startState()
	return f
}

func (f *fixture) file(name string) string { return filepath.Join(f.dir, name+".key") }

func (f *fixture) writeKey(name string) {
	f.t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f.t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(f.t, err)
	require.NoError(f.t, os.WriteFile(f.file(name), pem.EncodeToMemory(block), 0o600))
}

func (f *fixture) publish(subject string, data any) {
	f.t.Helper()
	f.revision++
	raw, err := json.Marshal(data)
	require.NoError(f.t, err)
	m := natsgo.NewMsg(subject)
	m.Data = raw
	m.Header.Set(topology.RevisionHeader, strconv.Itoa(f.revision))
	_, err = f.js.PublishMsg(natstest.Context(f.t), m)
	require.NoError(f.t, err)
}

func (f *fixture) person(user events.DirectoryUser) {
	f.t.Helper()
	user.UserID, user.UsernameHash = owner, directory.HashUsername(signintest.Login)
	f.publish(cell.Directory("user", strconv.Itoa(owner)), user)
}

func (f *fixture) workspace(change func(*events.AccessWorkspace)) {
	f.t.Helper()
	w := events.AccessWorkspace{
		WorkspaceID: id, Name: "hello", Namespace: "ws", ProjectID: 4, AgentID: 7, UserID: owner,
		ActualState: events.ActualStateRunning,
	}
	if change != nil {
		change(&w)
	}
	f.publish(cell.AccessWorkspace(id), w)
}

// startState starts the part of the state service that a gateway calls. It verifies tokens as the real one does.
func (f *fixture) startState() {
	f.t.Helper()
	mux := http.NewServeMux()
	options := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))
	mux.Handle(statev1connect.NewWorkspaceServiceHandler(&workspaceService{f: f}, options))
	mux.Handle(statev1connect.NewTokenServiceHandler(&tokenService{f: f}, options))
	f.state = httptest.NewServer(mux)
	f.t.Cleanup(f.state.Close)
}

type workspaceService struct {
	statev1connect.UnimplementedWorkspaceServiceHandler

	f *fixture
}

func bearer(header http.Header) string { return header.Get("Authorization")[len("Bearer "):] }

// actsFor verifies a token of the gateway.
func (f *fixture) actsFor(header http.Header, scope persontoken.Scope) (int64, error) {
	raw, err := os.ReadFile(f.file("person"))
	if err != nil {
		return 0, err
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return 0, err
	}
	public, err := persontoken.ParsePublicKey(string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	if err != nil {
		return 0, err
	}
	person, err := persontoken.Verify([]ed25519.PublicKey{public}, cell, bearer(header), time.Now())
	if err == nil && !person.Permits(scope) {
		err = fault.New(errcode.PermissionDenied, "the token has no such scope")
	}
	return person.UserID, err
}

func (s *workspaceService) SetDesiredState(
	_ context.Context, r *connect.Request[statev1.SetDesiredStateRequest],
) (*connect.Response[statev1.SetDesiredStateResponse], error) {
	user, err := s.f.actsFor(r.Header(), persontoken.ScopeStartWorkspaces)
	if err != nil || user != owner || r.Msg.GetDesiredState() != statev1.DesiredState_DESIRED_STATE_RUNNING {
		return nil, fault.New(errcode.PermissionDenied, "you may not do this")
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.started = append(s.f.started, r.Msg.GetWorkspace().GetId())
	return connect.NewResponse(&statev1.SetDesiredStateResponse{}), nil
}

type tokenService struct {
	statev1connect.UnimplementedTokenServiceHandler

	f *fixture
}

func (s *tokenService) CreateToken(
	_ context.Context, r *connect.Request[statev1.CreateTokenRequest],
) (*connect.Response[statev1.CreateTokenResponse], error) {
	user, err := s.f.actsFor(r.Header(), persontoken.ScopeCreateTokens)
	if err != nil {
		return nil, fault.New(errcode.PermissionDenied, "you may not do this")
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	value := "lsp_" + r.Msg.GetName()
	s.f.tokens[value] = user
	return connect.NewResponse(&statev1.CreateTokenResponse{Value: value}), nil
}

func (s *tokenService) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	s.f.mu.Lock()
	user, known := s.f.tokens[bearer(r.Header())]
	s.f.mu.Unlock()
	if !known {
		return nil, fault.New(errcode.Unauthenticated, "the token is not known")
	}
	token, err := s.f.accessToken(user, r.Msg.GetAudience(), libaccess.ScopeAdmin)
	return connect.NewResponse(&statev1.ExchangeTokenResponse{AccessToken: token}), err
}

func (f *fixture) accessToken(user int64, audience []string, scope libaccess.Scope) (string, error) {
	return libaccess.Sign(f.private, keyID, libaccess.Grant{
		Issuer: libaccess.Issuer(cell), Audience: audience, UserID: user, TokenID: tokenID, Scope: scope,
		IssuedAt: time.Now(), ExpiresAt: time.Now().Add(time.Minute),
	})
}

// startAgent serves the agent of the workspace. It returns its address.
func (f *fixture) startAgent() string {
	f.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	home := f.t.TempDir()
	hostKey, err := sshserver.HostKey(filepath.Join(home, ".lockstep"))
	require.NoError(f.t, err)
	server := sshserver.New(sshserver.Options{
		Workspace: id, HostKey: hostKey, Home: home, StateFolder: filepath.Join(home, ".lockstep"),
		Environ: []string{"PATH=" + os.Getenv("PATH")}, Logger: slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) {
			key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(f.authority.PublicKey()))
			return []ssh.PublicKey{key}, err
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-served)
	})
	return listener.Addr().String()
}

func (f *fixture) config() gateway.Config {
	f.t.Helper()
	cfg := gateway.DefaultConfig()
	cfg.Ops.Listen, cfg.Web.Listen, cfg.SSH.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.SSH.Address = "ws.test:2222"
	cfg.Zone = zone
	cfg.Telemetry.Out = io.Discard
	cfg.NATS.URL = config.URL(f.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(f.dir, natsauth.PrincipalGateway))
	cfg.SSH.HostKeyFile = config.SecretFile(f.file("host"))
	cfg.SignIn.KeysFile = config.SecretFile(f.file("cookies"))
	cfg.SignIn.PersonKeyFile = config.SecretFile(f.file("person"))
	cfg.Workspaces.AuthorityKeyFile = config.SecretFile(f.file("authority"))
	cfg.State.URL = f.state.URL
	require.Empty(f.t, cfg.Validate())
	return cfg
}

// running is a gateway that runs. A browser reaches it through a proxy that terminates TLS.
type running struct {
	*fixture

	addresses map[string]string
	front     *httptest.Server
	end       func()
}

func (f *fixture) start(cfg gateway.Config) *running {
	f.t.Helper()
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addresses map[string]string) { ready <- addresses }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- gateway.Main(ctx, cfg) }()
	r := &running{fixture: f, end: sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})}
	select {
	case r.addresses = <-ready:
	case err := <-ended:
		ended <- err
		require.FailNow(f.t, "the service ended", "%v", err)
	case <-time.After(soon):
		require.FailNow(f.t, "the service is not ready")
	}
	f.t.Cleanup(r.end)
	transport := &http.Transport{DisableKeepAlives: true}
	r.front = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		request.URL.Scheme, request.URL.Host, request.RequestURI = "http", r.addresses["web"], ""
		response, err := transport.RoundTrip(request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		maps.Copy(w.Header(), response.Header)
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	f.t.Cleanup(r.front.Close)
	return r
}

func (r *running) browser(issuer string) *signintest.Browser {
	return signintest.NewBrowser(r.t, zone, r.front.Listener.Addr().String(), issuer)
}

// dial connects to the SSH server, for the workspace hello, as Go's client.
func (r *running) dial(auth ssh.AuthMethod) (*ssh.Client, error) {
	client, err := ssh.Dial("tcp", r.addresses["ssh"], &ssh.ClientConfig{
		User: "hello", Auth: []ssh.AuthMethod{auth}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err == nil {
		r.t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

// newSigner registers an SSH key of the owner.
func (f *fixture) newSigner() (ssh.Signer, events.AccessSSHKey) {
	f.t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f.t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(f.t, err)
	key := events.AccessSSHKey{Fingerprint: access.Fingerprint(signer.PublicKey()), UserID: owner}
	f.publish(cell.AccessSSHKey(key.Fingerprint), key)
	return signer, key
}
