package service_test

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// An image from scratch has no certificate authorities: without the ones that are linked in, no TLS
// connection of a service to a public name would be trusted. The system's are read once in a
// process, so a child of its own looks at them.
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
