package seal

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// digestDomain is the domain separation prefix of the HMAC input.
const digestDomain = "lockstep.dev/seal/values/v1\x00"

// ErrInvalidDigestKey is wrapped by errors about digest keys that are not 32 bytes in hexadecimal.
var ErrInvalidDigestKey = errors.New("invalid digest key")

// DigestKey is the HMAC key of digests. Keep it secret: its holder can brute-force short values.
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

// Digest returns the HMAC-SHA256 of the values' canonical encoding, as 64 hexadecimal characters. It panics if the
// key is empty, which would not be a secret.
func Digest(key DigestKey, values Values) string {
	if key.secret.text == "" {
		panic("seal: digest with an empty key")
	}

	mac := hmac.New(sha256.New, []byte(key.secret.text))
	mac.Write(appendValues([]byte(digestDomain), values))

	return hex.EncodeToString(mac.Sum(nil))
}
