package persontoken

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// MaxKeys is the maximum number of keys of a verifier.
const MaxKeys = 16

// ErrInvalidKey is wrapped by errors about a key that cannot be used.
var ErrInvalidKey = errors.New("not an Ed25519 public key such as ssh-ed25519 AAAA…")

// ParsePublicKey reads the public key of a gateway in OpenSSH's format, as ssh-keygen writes it.
func ParsePublicKey(text string) (ed25519.PublicKey, error) {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || len(rest) > 0 || len(options) > 0 {
		return nil, fmt.Errorf("%.80q is %w", text, ErrInvalidKey)
	}
	if carrier, ok := key.(ssh.CryptoPublicKey); ok {
		if public, ok := carrier.CryptoPublicKey().(ed25519.PublicKey); ok {
			return public, nil
		}
	}
	return nil, fmt.Errorf("%.80q is %w", text, ErrInvalidKey)
}

// FormatPublicKey returns the key as [ParsePublicKey] reads it.
func FormatPublicKey(key ed25519.PublicKey) (string, error) {
	public, err := ssh.NewPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("format a public key: %w", err)
	}
	text := ssh.MarshalAuthorizedKey(public)
	return string(text[:len(text)-1]), nil
}

// keyID names a key in the tokens that it signs.
func keyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
