package sshfront

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
	"lockstep.internal/services/gateway/agent/sshserver"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	ada, eve = 1, 2
	token    = "token-of-ada"
)

// fixture is a gateway with the workspaces hello and second of ada, each with a real agent.
type fixture struct {
	*testing.T

	table     *access.Table
	activity  *activity.Table
	revoked   chan struct{} // the token of ada
	authority *authority.Authority
	address   string
	hostKey   ssh.Signer
	adasKey   ssh.Signer
	adasFile  string
	homes     map[string]string // by id

	mu     sync.Mutex
	agents map[string]string // addresses by id
	keys   map[string]ssh.PublicKey
}

func newFixture(t *testing.T, change func(*Limits)) *fixture {
	f := &fixture{
		T: t, table: access.New(), activity: activity.New(time.Now), revoked: make(chan struct{}),
		homes: map[string]string{}, agents: map[string]string{}, keys: map[string]ssh.PublicKey{},
	}
	key, err := authority.Generate()
	require.NoError(t, err)
	f.authority, err = authority.Parse(key)
	require.NoError(t, err)
	f.hostKey, _ = newKey(t)
	f.adasKey, f.adasFile = newKey(t)
	for _, name := range []string{"hello", "second"} {
		f.startAgent("id-of-" + name)
		f.table.Set(access.Entry{ID: "id-of-" + name, Name: name, OwnerID: ada, Running: true})
	}
	limits := DefaultLimits()
	if change != nil {
		change(&limits)
	}
	server := New(Options{
		HostKeys: []ssh.Signer{f.hostKey}, People: f, Workspaces: f, Activity: f.activity, Limits: limits,
		Logger: slog.New(slog.DiscardHandler),
	})
	f.address = f.listen(server.Serve)
	return f
}

func (f *fixture) listen(serve func(context.Context, net.Listener) error) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	served := make(chan error, 1)
	go func() { served <- serve(f.Context(), listener) }()
	f.Cleanup(func() { require.NoError(f, <-served) }) // the context of the test has ended
	return listener.Addr().String()
}

func (f *fixture) startAgent(id string) {
	home := f.TempDir()
	hostKey, err := sshserver.HostKey(filepath.Join(home, ".lockstep"))
	require.NoError(f, err)
	server := sshserver.New(sshserver.Options{
		Workspace: id, HostKey: hostKey, Home: home, StateFolder: filepath.Join(home, ".lockstep"),
		Environ: []string{"PATH=" + os.Getenv("PATH"), "WORKSPACE=" + id}, Logger: slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) {
			key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(f.authority.PublicKey()))
			return []ssh.PublicKey{key}, err
		},
	})
	f.homes[id], f.agents[id], f.keys[id] = home, f.listen(server.Serve), hostKey.PublicKey()
}

func (f *fixture) Enter(userID int64, name string, port int) (*access.Grant, error) {
	return f.table.Enter(userID, name, port)
}

func (f *fixture) Connect(ctx context.Context, w access.Entry, p Person) (Connection, error) {
	f.mu.Lock()
	address, hostKey := f.agents[w.ID], f.keys[w.ID]
	f.mu.Unlock()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return Connection{}, err
	}
	signer, err := f.authority.Sign(w.ID, p.Login,
		authority.Rights{Terminal: true, PortForwarding: true, AgentForwarding: true}, time.Now())
	if err != nil {
		return Connection{}, err
	}
	connection, channels, requests, err := ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User: w.ID, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(hostKey),
	})
	return Connection{connection, channels, requests}, err
}

func (f *fixture) ByKey(_ context.Context, key ssh.PublicKey) (Person, error) {
	if string(key.Marshal()) != string(f.adasKey.PublicKey().Marshal()) {
		return Person{}, errors.New("nobody has this key")
	}
	return Person{ID: ada, Login: "ada"}, nil
}

func (f *fixture) ByToken(_ context.Context, text string) (Person, error) {
	switch text {
	case token:
		return Person{ID: ada, Login: "ada", Credential: text}, nil
	case "token-of-eve":
		return Person{ID: eve, Login: "eve", Credential: text}, nil
	}
	return Person{}, errors.New("no such token")
}

func (f *fixture) Ended(ctx context.Context, p Person) error {
	var revoked <-chan struct{}
	if p.Credential == token {
		revoked = f.revoked
	}
	select {
	case <-revoked:
		return errors.New("the token was revoked")
	case <-ctx.Done():
		return nil
	}
}

// newKey returns a key, and its file.
func newKey(t testing.TB) (signer ssh.Signer, file string) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err = ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	file = filepath.Join(t.TempDir(), "id")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	return signer, file
}

// dial connects to a workspace as Go's client.
func (f *fixture) dial(workspace string, auth ssh.AuthMethod) (*ssh.Client, error) {
	client, err := ssh.Dial("tcp", f.address, &ssh.ClientConfig{
		User: workspace, Auth: []ssh.AuthMethod{auth}, HostKeyCallback: ssh.FixedHostKey(f.hostKey.PublicKey()),
	})
	if err == nil {
		f.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func (f *fixture) run(client *ssh.Client, line string) string {
	session, err := client.NewSession()
	require.NoError(f, err)
	defer session.Close()
	output, err := session.CombinedOutput(line)
	require.NoError(f, err, "%s", output)
	return string(output)
}

// openSSH writes a configuration for OpenSSH's programs, in which "gateway" is the gateway.
func (f *fixture) openSSH() (run func(program string, arguments ...string) (string, error)) {
	host, port, err := net.SplitHostPort(f.address)
	require.NoError(f, err)
	folder := f.TempDir()
	hostKey := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(f.hostKey.PublicKey())))
	known := fmt.Sprintf("[%s]:%s %s\nhello %s\nsecond %s\n", host, port, hostKey, hostKey, hostKey)
	require.NoError(f, os.WriteFile(filepath.Join(folder, "known_hosts"), []byte(known), 0o600))
	config := fmt.Sprintf(`Host gateway
  HostName %s
  Port %s
Host *
  IdentityFile %s
  IdentitiesOnly yes
  BatchMode yes
  StrictHostKeyChecking yes
  UserKnownHostsFile %s
`, host, port, f.adasFile, filepath.Join(folder, "known_hosts"))
	path := filepath.Join(folder, "config")
	require.NoError(f, os.WriteFile(path, []byte(config), 0o600))
	return func(program string, arguments ...string) (string, error) {
		command := exec.CommandContext(f.Context(), program, append([]string{"-F", path}, arguments...)...)
		output, err := command.CombinedOutput()
		return string(output), err
	}
}
