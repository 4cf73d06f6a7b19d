package authority

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// lifetime of a certificate. Only the start of a connection needs one.
	lifetime = 5 * time.Minute
	// clockSkew is how far the clock of a workspace may be behind.
	clockSkew = 5 * time.Minute
)

// Authority signs certificates. Workspaces know its public key.
type Authority struct{ signer ssh.Signer }

// Generate returns a new private key in OpenSSH's format.
func Generate() ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the key of the SSH authority: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "Lockstep gateway")
	if err != nil {
		return nil, fmt.Errorf("create the key of the SSH authority: %w", err)
	}
	return pem.EncodeToMemory(block), nil
}

// Parse reads a private key without a passphrase.
func Parse(key []byte) (*Authority, error) {
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("read the key of the SSH authority: %w", err)
	}
	return &Authority{signer}, nil
}

// PublicKey is a line in the format of authorized_keys, for the configuration of workspaces.
func (a *Authority) PublicKey() string {
	line := ssh.MarshalAuthorizedKey(a.signer.PublicKey())
	return string(line[:len(line)-1])
}

// Rights are what a connection may do besides commands, shells without a terminal, and files.
type Rights struct {
	Terminal        bool
	PortForwarding  bool
	AgentForwarding bool
}

// Sign returns a new key with a certificate for a workspace. The person's name is for logs.
func (a *Authority) Sign(workspace, person string, rights Rights, now time.Time) (ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	certificate := &ssh.Certificate{
		Key: key.PublicKey(), CertType: ssh.UserCert, KeyId: person, ValidPrincipals: []string{workspace},
		ValidAfter: uint64(now.Add(-clockSkew).Unix()), ValidBefore: uint64(now.Add(lifetime + clockSkew).Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{}},
	}
	for extension, granted := range map[string]bool{
		"permit-pty": rights.Terminal, "permit-port-forwarding": rights.PortForwarding,
		"permit-agent-forwarding": rights.AgentForwarding,
	} {
		if granted {
			certificate.Extensions[extension] = ""
		}
	}
	if err := certificate.SignCert(rand.Reader, a.signer); err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	signer, err := ssh.NewCertSigner(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return signer, nil
}
