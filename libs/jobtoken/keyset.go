package jobtoken

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// MaxKeys is the maximum number of keys of a set.
const MaxKeys = 16

// Key is a public key.
type Key struct {
	// ID is up to 64 of letters, digits, '-' and '_'.
	ID     string
	Public ed25519.PublicKey
}

// KeySet is the public keys of one cell. Its JSON form is a JSON Web Key Set (RFC 7517, RFC 8037).
type KeySet []Key

// ErrInvalidKeySet is wrapped by errors about a key set that cannot be used.
var ErrInvalidKeySet = errors.New("invalid key set")

var keyIDPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func validKeyID(id string) bool { return keyIDPattern.MatchString(id) }

// Find returns the key with this id.
func (s KeySet) Find(id string) (ed25519.PublicKey, bool) {
	for _, key := range s {
		if key.ID == id {
			return key.Public, true
		}
	}
	return nil, false
}

// Validate returns an error for too many keys, keys of a wrong size, and invalid or repeated ids.
func (s KeySet) Validate() error {
	if len(s) > MaxKeys {
		return fmt.Errorf("%w: %d keys, at most %d", ErrInvalidKeySet, len(s), MaxKeys)
	}
	known := map[string]bool{}
	for _, key := range s {
		switch {
		case !validKeyID(key.ID):
			return fmt.Errorf("%w: key id %q: use up to 64 of letters, digits, '-' and '_'", ErrInvalidKeySet, key.ID)
		case known[key.ID]:
			return fmt.Errorf("%w: key id %q is there twice", ErrInvalidKeySet, key.ID)
		case len(key.Public) != ed25519.PublicKeySize:
			return fmt.Errorf("%w: key %q has %d bytes instead of %d",
				ErrInvalidKeySet, key.ID, len(key.Public), ed25519.PublicKeySize)
		}
		known[key.ID] = true
	}
	return nil
}

// jwk is the JSON form of an Ed25519 key.
type jwk struct {
	Type      string `json:"kty"`
	Curve     string `json:"crv"`
	Algorithm string `json:"alg"`
	Use       string `json:"use"`
	ID        string `json:"kid"`
	X         string `json:"x"`
}

type jwks struct {
	Keys []jwk `json:"keys"`
}

// MarshalJSON returns the set as a JSON Web Key Set.
func (s KeySet) MarshalJSON() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	set := jwks{Keys: make([]jwk, 0, len(s))}
	for _, key := range s {
		set.Keys = append(set.Keys, jwk{
			Type: "OKP", Curve: "Ed25519", Algorithm: "EdDSA", Use: "sig", ID: key.ID,
			X: base64.RawURLEncoding.EncodeToString(key.Public),
		})
	}
	text, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("encode a key set: %w", err)
	}
	return text, nil
}

// UnmarshalJSON reads a JSON Web Key Set. It refuses keys of other kinds than [KeySet.MarshalJSON] writes. Errors wrap
// [ErrInvalidKeySet].
func (s *KeySet) UnmarshalJSON(text []byte) error {
	var set jwks
	if err := json.Unmarshal(text, &set); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidKeySet, err)
	}
	if len(set.Keys) > MaxKeys {
		return fmt.Errorf("%w: %d keys, at most %d", ErrInvalidKeySet, len(set.Keys), MaxKeys)
	}
	read := make(KeySet, 0, len(set.Keys))
	for _, key := range set.Keys {
		if key.Type != "OKP" || key.Curve != "Ed25519" || key.Algorithm != "EdDSA" || key.Use != "sig" {
			return fmt.Errorf("%w: key %q is no Ed25519 key for signatures", ErrInvalidKeySet, key.ID)
		}
		public, err := base64.RawURLEncoding.Strict().DecodeString(key.X)
		if err != nil {
			return fmt.Errorf("%w: key %q is not base64url: %w", ErrInvalidKeySet, key.ID, err)
		}
		read = append(read, Key{ID: key.ID, Public: public})
	}
	if err := read.Validate(); err != nil {
		return err
	}
	*s = read
	return nil
}
