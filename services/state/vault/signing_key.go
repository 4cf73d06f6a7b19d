package vault

import (
	"crypto/ed25519"
	"fmt"

	"lockstep.internal/libs/seal"
)

// seedName is what the only value of a signing key's box is called.
const seedName = "seed"

// StoreSigningKey seals a key that access tokens are signed with for the database.
func (v *Vault) StoreSigningKey(id string, key ed25519.PrivateKey) ([]byte, error) {
	box, err := seal.Values{seedName: seal.NewValue(string(key.Seed()))}.Seal(signingKeyLabel(id), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("seal signing key %s: %w", id, err)
	}
	return box, nil
}

// LoadSigningKey opens what StoreSigningKey sealed.
func (v *Vault) LoadSigningKey(id string, box []byte) (ed25519.PrivateKey, error) {
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
