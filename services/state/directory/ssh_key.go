package directory

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
)

const (
	// maxPublicKey is the maximum size of a public key in bytes.
	maxPublicKey = 16 << 10
	minRSABits   = 3072
)

// Fingerprint is the SHA-256 of a public key in SSH's wire format.
type Fingerprint [sha256.Size]byte

// String returns the fingerprint as ssh-keygen -l prints it.
func (f Fingerprint) String() string { return "SHA256:" + base64.RawStdEncoding.EncodeToString(f[:]) }

// SSHKey is a public key with which a person enters workspaces. It belongs to one person.
type SSHKey struct {
	Fingerprint Fingerprint
	UserID      int64
	// Name is unique among the keys of the person.
	Name string
	// PublicKey has OpenSSH's format, without a comment.
	PublicKey string
	CreatedAt time.Time
	// ExpiresAt is zero for never.
	ExpiresAt time.Time
	Removed   bool
}

// Event returns what the gateway knows of the key.
func (k SSHKey) Event() events.AccessSSHKey {
	e := events.AccessSSHKey{Fingerprint: k.ID(), UserID: int(k.UserID), Deleted: k.Removed}
	if !k.ExpiresAt.IsZero() {
		e.ExpiresAt = new(k.ExpiresAt.UTC())
	}
	return e
}

// ID returns the fingerprint as 64 hexadecimal digits.
func (k SSHKey) ID() string { return hex.EncodeToString(k.Fingerprint[:]) }

// sshKeyTypes are the accepted types of keys.
func sshKeyTypes() []string {
	return []string{
		ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA,
		ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
	}
}

// ParseSSHKey reads a public key as ssh-keygen writes it: one line, without options. The name defaults to the key's
// comment. It returns the fault invalid_argument for other texts, certificates, DSA keys and short RSA keys.
func ParseSSHKey(text, name string) (SSHKey, error) {
	invalid := func(format string, args ...any) (SSHKey, error) {
		return SSHKey{}, fault.New(errcode.InvalidArgument, "public_key: "+format, args...).With("field", "public_key")
	}
	if len(text) > maxPublicKey {
		return invalid("has %d bytes, the maximum is %d", len(text), maxPublicKey)
	}
	if strings.Contains(text, "PRIVATE KEY") {
		return invalid("is a private key: send the file that ends in .pub, and keep this one")
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || len(options) > 0 || strings.TrimSpace(string(rest)) != "" {
		return invalid("is not one public key such as ssh-ed25519 AAAA…, without options")
	}
	if !slices.Contains(sshKeyTypes(), key.Type()) {
		return invalid("the type %s is not accepted: use one of %s", key.Type(), strings.Join(sshKeyTypes(), ", "))
	}
	if carrier, ok := key.(ssh.CryptoPublicKey); ok {
		if public, ok := carrier.CryptoPublicKey().(*rsa.PublicKey); ok && public.N.BitLen() < minRSABits {
			return invalid("an RSA key of %d bits is too short: use at least %d bits, or ed25519",
				public.N.BitLen(), minRSABits)
		}
	}
	if name == "" {
		name = comment
	}
	if name == "" || len(name) > MaxDisplayName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
		return SSHKey{}, fault.New(errcode.InvalidArgument,
			"name must have 1 to %d characters, without control characters: the key has no such comment", MaxDisplayName).
			With("field", "name")
	}
	return SSHKey{
		Fingerprint: sha256.Sum256(key.Marshal()), Name: name,
		PublicKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))),
	}, nil
}
