package seal

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// digestDomain keeps a digest from meaning anything where the same key were used for something
// else.
const digestDomain = "lockstep.dev/seal/values/v1\x00"

// ErrInvalidDigestKey is wrapped by errors about digest keys that are not 32 bytes in hexadecimal.
var ErrInvalidDigestKey = errors.New("invalid digest key")

// DigestKey makes digests. Whoever has it can try guesses against a digest; it stays with who makes
// them.
type DigestKey struct {
	secret Value
}

// GenerateDigestKey makes a new key of 256 random bits.
func GenerateDigestKey() DigestKey {
	key := make([]byte, sha256.Size)
	rand.Read(key) // It never fails: the program ends instead.

	return DigestKey{NewValue(string(key))}
}

// ParseDigestKey reads what [DigestKey.Encode] gave.
func ParseDigestKey(text string) (DigestKey, error) {
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != sha256.Size {
		return DigestKey{}, fmt.Errorf(
			"%w: not %d characters of hexadecimal", ErrInvalidDigestKey, hex.EncodedLen(sha256.Size),
		)
	}

	return DigestKey{NewValue(string(key))}, nil
}

// Encode is the key as text to be stored.
func (k DigestKey) Encode() Value { return NewValue(hex.EncodeToString([]byte(k.secret.text))) }

// Digest is 64 characters of hexadecimal that are the same exactly when key and values are the
// same: HMAC-SHA256 over the values in one canonical form. It panics with an empty key, which would
// be no secret.
func Digest(key DigestKey, values Values) string {
	if key.secret.text == "" {
		panic("seal: digest with an empty key")
	}

	mac := hmac.New(sha256.New, []byte(key.secret.text))
	mac.Write(appendValues([]byte(digestDomain), values))

	return hex.EncodeToString(mac.Sum(nil))
}
