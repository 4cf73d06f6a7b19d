package signingkey

import (
	"crypto/ed25519"
	"fmt"

	"lockstep.internal/libs/seal"
)

// seedName is the name of the single value in a box.
const seedName = "seed"

// Seal encrypts the private key of a signer for storage. Only the owner of key opens it, and only with the same label.
// The label names the table and the id of the signing key.
func Seal(private ed25519.PrivateKey, label string, key seal.Key) ([]byte, error) {
	box, err := seal.Values{seedName: seal.NewValue(string(private.Seed()))}.Seal(label, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", label, err)
	}
	return box, nil
}

// Open decrypts what [Seal] returned. Errors wrap [seal.ErrNotOpened] if the box is not for this key and label.
func Open(box []byte, label string, key seal.Key) (ed25519.PrivateKey, error) {
	values, err := seal.OpenValues(box, label, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", label, err)
	}
	seed := []byte(values[seedName].Reveal())
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("open %s: %w: a seed of %d bytes", label, seal.ErrNotOpened, len(seed))
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
