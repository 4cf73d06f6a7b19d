package sshserver

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const workspace = "0b6c7f2e-workspace"

// fixture is a server on the loopback address, and the authority of its certificates.
type fixture struct {
	*testing.T

	address   string
	home      string
	hostKey   ssh.Signer
	authority ssh.Signer
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, home: t.TempDir(), authority: newKey(t)}
	f.hostKey = newKey(t)
	state := filepath.Join(f.home, ".lockstep")
	require.NoError(t, os.Mkdir(state, 0o700))
	server := New(Options{
		Workspace: workspace, HostKey: f.hostKey, Home: f.home, StateFolder: state,
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.home, "IN_WORKSPACE=yes"},
		Logger:  slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) {
			return []ssh.PublicKey{newKey(t).PublicKey(), f.authority.PublicKey()}, nil
		},
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f.address = listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context(), listener) }()
	// The context of the test has ended when this runs.
	t.Cleanup(func() { require.NoError(t, <-served) })
	return f
}

func newKey(t testing.TB) ssh.Signer {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer
}

// certificate is what the gateway signs; change may change it before it is signed.
func (f *fixture) certificate(key ssh.PublicKey, change func(*ssh.Certificate)) *ssh.Certificate {
	now := time.Now()
	c := &ssh.Certificate{
		Key: key, CertType: ssh.UserCert, KeyId: "ada", ValidPrincipals: []string{workspace},
		ValidAfter: uint64(now.Add(-time.Minute).Unix()), ValidBefore: uint64(now.Add(time.Minute).Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{
			permitPty: "", permitPortForwarding: "", permitAgentForwarding: "",
		}},
	}
	if change != nil {
		change(c)
	}
	require.NoError(f, c.SignCert(rand.Reader, f.authority))
	return c
}

// dial connects as the gateway does.
func (f *fixture) dial(change func(*ssh.Certificate)) (*ssh.Client, error) {
	key := newKey(f)
	signer, err := ssh.NewCertSigner(f.certificate(key.PublicKey(), change), key)
	require.NoError(f, err)
	return f.dialAs(workspace, signer)
}

func (f *fixture) dialAs(user string, signer ssh.Signer) (*ssh.Client, error) {
	client, err := ssh.Dial("tcp", f.address, &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(f.hostKey.PublicKey()),
	})
	if err == nil {
		f.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func (f *fixture) client() *ssh.Client {
	client, err := f.dial(nil)
	require.NoError(f, err)
	return client
}

func (f *fixture) session(client *ssh.Client) *ssh.Session {
	session, err := client.NewSession()
	require.NoError(f, err)
	f.Cleanup(func() { _ = session.Close() })
	return session
}

// keyFiles writes a key with its certificate as OpenSSH reads them, and the host key as known.
func (f *fixture) keyFiles() (identity, knownHosts string) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(f, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(f, err)
	folder := f.TempDir()
	identity, knownHosts = filepath.Join(folder, "id"), filepath.Join(folder, "known_hosts")
	require.NoError(f, os.WriteFile(identity, pem.EncodeToMemory(block), 0o600))
	require.NoError(f, os.WriteFile(identity+"-cert.pub",
		ssh.MarshalAuthorizedKey(f.certificate(signer.PublicKey(), nil)), 0o600))
	host, port, err := net.SplitHostPort(f.address)
	require.NoError(f, err)
	line := "[" + host + "]:" + port + " " + string(ssh.MarshalAuthorizedKey(f.hostKey.PublicKey()))
	require.NoError(f, os.WriteFile(knownHosts, []byte(line), 0o600))
	return identity, knownHosts
}
