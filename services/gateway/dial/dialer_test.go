package dial_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/agent/sshserver"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/dial"
	"lockstep.internal/services/gateway/sshfront"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const workspace = "id-of-hello"

// fixture is a workspace with a real agent. It stands for the DNS of the cluster and for the stored host keys.
type fixture struct {
	*testing.T

	dialer  dial.Dialer
	agent   string
	hostKey ssh.PublicKey

	mu      sync.Mutex
	dialed  []string
	checked []string
	refuse  error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t}
	key, err := authority.Generate()
	require.NoError(t, err)
	signer, err := authority.Parse(key)
	require.NoError(t, err)
	table := access.New()
	table.Set(access.Entry{ID: workspace, Name: "hello", Namespace: "ws-7-hello", OwnerID: 1, Running: true})
	f.dialer = dial.Dialer{Options: dial.Options{
		Table: table, Authority: signer, HostKeys: f, Now: time.Now,
		Network: dial.Direct{Domain: "svc", DialContext: f.dial},
	}}
	f.startAgent(signer.PublicKey())
	return f
}

func (f *fixture) startAgent(authorityKey string) {
	f.Helper()
	home := f.TempDir()
	state := filepath.Join(home, ".lockstep")
	hostKey, err := sshserver.HostKey(state)
	require.NoError(f, err)
	server := sshserver.New(sshserver.Options{
		Workspace: workspace, HostKey: hostKey, Home: home, StateFolder: state,
		Environ: []string{"PATH=" + os.Getenv("PATH")}, Logger: slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) {
			key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(authorityKey))
			return []ssh.PublicKey{key}, err
		},
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(f.Context(), listener) }()
	f.Cleanup(func() { require.NoError(f, <-served) }) // the context of the test has ended
	f.agent, f.hostKey = listener.Addr().String(), hostKey.PublicKey()
}

func (f *fixture) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	f.dialed = append(f.dialed, address)
	f.mu.Unlock()
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, f.agent)
}

// Check implements dial.HostKeys.
func (f *fixture) Check(_ context.Context, id string, key ssh.PublicKey) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked = append(f.checked, id+" "+ssh.FingerprintSHA256(key))
	return f.refuse
}

func (f *fixture) entry() access.Entry {
	f.Helper()
	e, found := f.dialer.Table.Find(workspace)
	require.True(f, found)
	return e
}

func TestConnectRunsCommandsInTheWorkspace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := f.dialer.Connect(t.Context(), f.entry(), sshfront.Person{ID: 1, Login: "ada"})
	require.NoError(t, err)
	client := ssh.NewClient(c.Conn, c.Channels, c.Requests)
	defer client.Close()
	session, err := client.NewSession()
	require.NoError(t, err)
	output, err := session.Output("echo hello")
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(output))
	require.Equal(t, []string{"hello.ws-7-hello.svc:60022"}, f.dialed)
	require.Equal(t, []string{workspace + " " + ssh.FingerprintSHA256(f.hostKey)}, f.checked)
}

func TestConnectRefusesAnotherHostKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.refuse = errors.New("it is not the key of the workspace")
	_, err := f.dialer.Connect(t.Context(), f.entry(), sshfront.Person{ID: 1, Login: "ada"})
	require.ErrorContains(t, err, "connect to the agent of workspace hello")
	require.ErrorContains(t, err, "it is not the key of the workspace")
}

func TestAgentRefusesAnotherAuthority(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	other, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	f.startAgent(string(ssh.MarshalAuthorizedKey(other.PublicKey())))
	_, err = f.dialer.Connect(t.Context(), f.entry(), sshfront.Person{ID: 1, Login: "ada"})
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	require.NoError(t, err)
	defer silent.Close()
	f.agent = silent.Addr().String()
	f.dialer.Network = dial.Direct{
		Domain: "svc", DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := f.dial(ctx, network, address)
			cancel()
			return conn, err
		},
	}
	_, err = f.dialer.Connect(ctx, f.entry(), sshfront.Person{ID: 1, Login: "ada"})
	require.Error(t, err)
}

func TestDialReachesAPortOfTheService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn, err := f.dialer.Dial(t.Context(), workspace, 8080)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, []string{"hello.ws-7-hello.svc:8080"}, f.dialed)
	_, err = f.dialer.Dial(t.Context(), "id-of-another", 8080)
	require.ErrorContains(t, err, "does not exist any more")
}
