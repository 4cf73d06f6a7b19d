package directory_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

// line returns a public key in OpenSSH's format, with a comment.
func line(t *testing.T, key any, comment string) (string, ssh.PublicKey) {
	t.Helper()
	public, err := ssh.NewPublicKey(key)
	require.NoError(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))) + " " + comment, public
}

func rsaKey(t *testing.T, bits int) *rsa.PublicKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	require.NoError(t, err)
	return &key.PublicKey
}

func TestSSHKeyIsParsed(t *testing.T) {
	t.Parallel()
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	wire := ssh.Marshal(struct {
		Type        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, ed, "ssh:"})
	hardware, err := ssh.ParsePublicKey(wire)
	require.NoError(t, err)
	texts := map[string]ssh.PublicKey{
		ssh.KeyAlgoSKED25519 + " " + base64.StdEncoding.EncodeToString(wire) + " ada@laptop": hardware,
	}
	for _, key := range []any{ed, &curve.PublicKey, rsaKey(t, 3072)} {
		text, public := line(t, key, "ada@laptop")
		texts[text] = public
	}
	for text, public := range texts {
		for given, name := range map[string]string{"": "ada@laptop", "work": "work"} {
			k, err := directory.ParseSSHKey("\n"+text+"\n", given)
			require.NoError(t, err, text)
			require.Equal(t, name, k.Name)
			require.Equal(t, ssh.FingerprintSHA256(public), k.Fingerprint.String())
			require.NotContains(t, k.PublicKey, "ada@laptop")
			require.Len(t, k.ID(), 64)
		}
	}
}

func TestUnacceptableSSHKeyIsRefused(t *testing.T) {
	t.Parallel()
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	text, public := line(t, ed, "")
	short, _ := line(t, rsaKey(t, 2048), "x")
	dsa := base64.StdEncoding.EncodeToString(ssh.Marshal(struct {
		Type string
		Key  []byte
	}{"ssh-dss", []byte("x")}))
	_, authority, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromSigner(authority)
	require.NoError(t, err)
	certificate := &ssh.Certificate{Key: public, CertType: ssh.UserCert, ValidPrincipals: []string{"ada"}}
	require.NoError(t, certificate.SignCert(rand.Reader, signer))
	for name, c := range map[string]struct{ text, name, reason string }{
		"nothing":           {"", "n", "not one public key"},
		"no key":            {"hello", "n", "not one public key"},
		"a private key":     {"-----BEGIN OPENSSH PRIVATE KEY-----", "n", "private key"},
		"options":           {`no-touch-required ` + text, "n", "without options"},
		"two keys":          {text + "\n" + text, "n", "not one public key"},
		"DSA":               {"ssh-dss " + dsa, "n", "public key"},
		"a short RSA key":   {short, "n", "2048 bits"},
		"a certificate":     {string(ssh.MarshalAuthorizedKey(certificate)), "n", "not accepted"},
		"too long":          {text + strings.Repeat("x", 20<<10), "n", "maximum"},
		"no name":           {text, "", "name"},
		"a long name":       {text, strings.Repeat("n", 101), "name"},
		"a name of 2 lines": {text, "a\nb", "name"},
	} {
		_, err := directory.ParseSSHKey(c.text, c.name)
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err), name)
		require.ErrorContains(t, err, c.reason, name)
	}
}

func TestEventOfSSHKeyHasNoNameAndNoText(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	k := directory.SSHKey{UserID: 7, Name: "laptop", PublicKey: "ssh-ed25519 AAAA", ExpiresAt: at, Removed: true}
	e := k.Event()
	require.Equal(t, strings.Repeat("0", 64), e.Fingerprint)
	require.Equal(t, 7, e.UserID)
	require.Equal(t, at, *e.ExpiresAt)
	require.True(t, e.Deleted)
	require.Nil(t, directory.SSHKey{}.Event().ExpiresAt)
}
