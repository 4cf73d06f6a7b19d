// Package testcert makes certificates for tests of TLS: an authority that lives as long as the test
// and key pairs signed by it for 127.0.0.1, as PEM files.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority signs certificates.
type Authority struct {
	CAFile string // PEM file with its own certificate
	Pool   *x509.CertPool

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority.
func New(tb testing.TB) *Authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	template := certificate("test authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(tb, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(tb, err)
	a := &Authority{CAFile: filepath.Join(tb.TempDir(), "ca.pem"), Pool: x509.NewCertPool(), cert: cert, key: key}
	a.Pool.AddCert(cert)
	write(tb, a.CAFile, "CERTIFICATE", raw)
	return a
}

// Issue writes cert.pem and key.pem into a folder; the name becomes the common name.
func (a *Authority) Issue(tb testing.TB, folder, name string) (string, string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	template := certificate(name)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(tb, err)
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(tb, err)
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	write(tb, certFile, "CERTIFICATE", raw)
	write(tb, keyFile, "PRIVATE KEY", rawKey)
	return certFile, keyFile
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

func write(tb testing.TB, path, kind string, raw []byte) {
	tb.Helper()
	require.NoError(tb, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600))
}
