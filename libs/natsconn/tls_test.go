package natsconn_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/internal/testcert"
)

func TestTLSWithAPrivateCA(t *testing.T) {
	t.Parallel()
	authority := testcert.New(t)
	serverCert, serverKey := authority.Issue(t, t.TempDir(), "server")
	server := startWith(
		t, `tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }`, serverCert, serverKey, authority.CAFile,
	)
	cfg := configFor(strings.Replace(server.ClientURL(), "nats://", "tls://", 1))
	cfg.TLS.CAFile = authority.CAFile
	cfg.TLS.CertFile, cfg.TLS.KeyFile = authority.Issue(t, t.TempDir(), "client")
	conn := connect(t, cfg)
	healthy(t, conn)
	_, err := conn.TLSConnectionState()
	require.NoError(t, err)

	cfg.TLS.CAFile = testcert.New(t).CAFile
	stranger := connect(t, cfg)
	require.Eventually(t, func() bool {
		err := stranger.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "certificate")
	}, timeout, 1e6, "the error names the untrusted certificate")
}
