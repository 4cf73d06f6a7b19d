package authority

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func TestCertificateIsForOneWorkspaceAndSomeMinutes(t *testing.T) {
	key, err := Generate()
	require.NoError(t, err)
	a, err := Parse(key)
	require.NoError(t, err)
	now := time.Now()
	signer, err := a.Sign("id", "ada", Rights{Terminal: true}, now)
	require.NoError(t, err)
	certificate, ok := signer.PublicKey().(*ssh.Certificate)
	require.True(t, ok)
	require.Equal(t, map[string]string{"permit-pty": ""}, certificate.Extensions)
	require.Empty(t, certificate.CriticalOptions)
	require.Equal(t, "ada", certificate.KeyId)
	require.Equal(t, a.PublicKey()+"\n", string(ssh.MarshalAuthorizedKey(certificate.SignatureKey)))
	for at, valid := range map[time.Duration]bool{
		-clockSkew - time.Second: false, -clockSkew: true, 0: true, lifetime: true, lifetime + clockSkew + time.Second: false,
	} {
		checker := ssh.CertChecker{Clock: func() time.Time { return now.Add(at) }}
		require.Equal(t, valid, checker.CheckCert("id", certificate) == nil, at)
		require.Error(t, checker.CheckCert("other", certificate))
	}
	_, err = Parse([]byte("no key"))
	require.ErrorContains(t, err, "read the key of the SSH authority")
}
