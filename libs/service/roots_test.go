package service_test

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Images built from scratch have no CA certificates, so they are linked into the binary. A process reads the
// system's once, so the test starts a child process.
func TestLinkedRootCertificatesAreUsed(t *testing.T) {
	t.Parallel()
	if os.Getenv("SSL_CERT_FILE") == os.DevNull {
		pool, err := x509.SystemCertPool()
		require.NoError(t, err)
		require.False(t, pool.Equal(x509.NewCertPool()))
		return
	}
	program, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), "SSL_CERT_FILE="+os.DevNull, "SSL_CERT_DIR="+t.TempDir())
	out, err := child.CombinedOutput()
	require.NoError(t, err, string(out))
}
