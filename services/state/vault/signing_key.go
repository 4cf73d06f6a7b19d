package vault

import (
	"crypto/ed25519"
	"fmt"

	"lockstep.internal/libs/seal"
)

// seedName is the name of the single value in a signing key's box.
const seedName = "seed"

// SealSigningKey encrypts the private key of an access-token signer. The result is stored in the database.
func (v *Vault) SealSigningKey(id string, key ed25519.PrivateKey) ([]byte, error) {
	box, err := seal.Values{seedName: seal.NewValue(string(key.Seed()))}.Seal(signingKeyLabel(id), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("seal signing key %s: %w", id, err)
	}
	return box, nil
}

// OpenSigningKey decrypts what SealSigningKey returned.
func (v *Vault) OpenSigningKey(id string, box []byte) (ed25519.PrivateKey, error) {
	values, err := seal.OpenValues(box, signingKeyLabel(id), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("open signing key %s: %w", id, err)
	}
	seed := []byte(values[seedName].Reveal())
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("open signing key %s: %w: a seed of %d bytes", id, seal.ErrNotOpened, len(seed))
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

func signingKeyLabel(id string) string { return "token_signing_key/" + id }
