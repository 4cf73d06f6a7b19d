package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/tools/kubelab/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ensure(t *testing.T, dir string) pki.Bundle {
	t.Helper()
	bundle, err := pki.Ensure(dir, net.IPv4(10, 96, 0, 1), time.Now())
	require.NoError(t, err)
	return bundle
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), entry.Name())
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		out[entry.Name()] = string(content)
	}
	return out
}

func TestBundleIsCreatedOnceAndAtomically(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	// A partial bundle of a killed process is ignored.
	require.NoError(t, os.MkdirAll(dir+".new", 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir+".new", "ca.crt"), []byte("half"), 0o600))

	ensure(t, dir)
	first := contents(t, dir)
	require.NotEqual(t, "half", first["ca.crt"])
	require.NoDirExists(t, dir+".new")
	ensure(t, dir)
	require.Equal(t, first, contents(t, dir))
}

func TestCertificatesHaveTheirUsages(t *testing.T) {
	t.Parallel()
	bundle := ensure(t, filepath.Join(t.TempDir(), "pki"))
	ca, err := os.ReadFile(bundle.CA())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))

	cert, key := bundle.ServerCert()
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	for _, name := range []string{"127.0.0.1", "localhost", "10.96.0.1", "kubernetes.default.svc"} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		require.NoError(t, err, name)
	}

	config, err := bundle.Kubeconfig(pki.Admin, "lab", "https://127.0.0.1:1")
	require.NoError(t, err)
	block, _ := pem.Decode(config.AuthInfos["lab"].ClientCertificateData)
	admin, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.Equal(t, "kubelab-admin", admin.Subject.CommonName)
	require.Equal(t, []string{"system:masters"}, admin.Subject.Organization)
	_, err = admin.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	_, err = admin.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	require.Error(t, err)
}

func TestKubeconfigIsReplacedOnlyByItsOwnLab(t *testing.T) {
	t.Parallel()
	bundle := ensure(t, filepath.Join(t.TempDir(), "pki"))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, pki.CheckKubeconfigPath(path, "lab"), "a new file")
	config, err := bundle.Kubeconfig(pki.Admin, "lab", "https://127.0.0.1:1")
	require.NoError(t, err)
	require.NoError(t, pki.WriteKubeconfig(config, path))
	require.NoError(t, pki.CheckKubeconfigPath(path, "lab"), "its own file")
	require.ErrorContains(t, pki.CheckKubeconfigPath(path, "other"), "set another --kubeconfig")
	require.ErrorContains(t, pki.CheckKubeconfigPath(clientcmd.RecommendedHomeFile, "lab"), "the default kubeconfig")
	garbage := filepath.Join(t.TempDir(), "notes.txt")
	require.NoError(t, os.WriteFile(garbage, []byte("remember: [the milk"), 0o600))
	require.ErrorContains(t, pki.CheckKubeconfigPath(garbage, "lab"), "is not a kubeconfig")
	config, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, "https://127.0.0.1:1", config.Clusters["lab"].Server)
}
