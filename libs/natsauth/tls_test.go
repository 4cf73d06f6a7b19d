package natsauth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

// writeCertificate makes a self-signed certificate for 127.0.0.1. It returns the files of certificate and key, and the
// certificate.
func writeCertificate(t *testing.T, dir string) (string, string, string) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "nats"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)

	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, certPEM, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))

	return certFile, keyFile, string(certPEM)
}

// recordingAuthenticator records the credentials.
type recordingAuthenticator struct {
	natsauth.Authenticator

	seen chan<- natsauth.Credentials
}

func (s recordingAuthenticator) Authenticate(ctx context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	s.seen <- c

	return s.Authenticator.Authenticate(ctx, c)
}

// TestCredentialsFileConnects connects a new agent over TLS with only the credentials file.
func TestCredentialsFileConnects(t *testing.T) {
	t.Parallel()

	certFile, keyFile, ca := writeCertificate(t, t.TempDir())
	c := &cell{
		dir:       initDir(t, natsauth.Options{TLS: &natsauth.TLS{CertFile: certFile, KeyFile: keyFile}}),
		directory: newDirectory(),
	}
	c.server = startServer(t, c.dir)

	credentials := someCredentials(t)
	credentials.ServerURLs, credentials.CA = []string{c.server.ClientURL()}, ca
	c.directory.admit(credentials.AgentID, credentials.Token)

	seen := make(chan natsauth.Credentials, 10)

	c.startResponderWith(t, []nats.Option{nats.RootCAs(certFile)}, func(r *natsauth.Responder) {
		r.Authenticator = recordingAuthenticator{c.directory, seen}
	})

	path := filepath.Join(t.TempDir(), "agent.json")
	require.NoError(t, natsauth.WriteAgentCredentials(path, credentials))
	read, err := natsauth.ReadAgentCredentials(path)
	require.NoError(t, err)
	options, err := read.ConnectOptions()
	require.NoError(t, err)

	conn, err := nats.Connect(read.ServerURLs[0], append(options, nats.Timeout(timeout))...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.True(t, conn.TLSRequired())
	state, err := conn.TLSConnectionState()
	require.NoError(t, err)
	require.Equal(t, uint16(tls.VersionTLS13), state.Version)

	presented := receive(t, seen)
	require.Equal(t, "17", presented.User)
	require.Equal(t, credentials.Token, presented.Password)
	require.Equal(t, "127.0.0.1", presented.Host)
	require.NotNil(t, presented.TLS)

	// It receives replies on its own inbox.
	_, err = conn.RequestWithContext(testContext(t), "lockstep.local.secret.17.w", nil)
	require.ErrorIs(t, err, nats.ErrNoResponders)

	// Without the CA the connection fails.
	read.CA = ""
	options, err = read.ConnectOptions()
	require.NoError(t, err)
	_, err = nats.Connect(read.ServerURLs[0], append(options, nats.Timeout(timeout))...)
	require.ErrorContains(t, err, "certificate")
}
