package vault

import (
	"crypto/ed25519"

	"lockstep.internal/libs/signingkey"
)

// SealSigningKey encrypts the private key of an access-token signer. The result is stored in the database.
func (v *Vault) SealSigningKey(id string, key ed25519.PrivateKey) ([]byte, error) {
	return signingkey.Seal(key, signingKeyLabel(id), v.key)
}

// OpenSigningKey decrypts what SealSigningKey returned.
func (v *Vault) OpenSigningKey(id string, box []byte) (ed25519.PrivateKey, error) {
	return signingkey.Open(box, signingKeyLabel(id), v.key)
}

func signingKeyLabel(id string) string { return "token_signing_key/" + id }
