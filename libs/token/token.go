// Package token makes the secrets that people and agents show: personal access tokens, agent tokens.
//
// A token is <prefix>_<52 characters><7 characters>: 256 random bits and a CRC-32 over all before it, both in lower-case base32. The prefix
// lets secret scanners find a leaked one, the checksum lets them (and [Parse]) tell a token from a look-alike without asking anybody.
// Only the SHA-256 of a token is stored: 256 random bits cannot be guessed from it, so no slow hash is needed.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
)

// Prefixes of the tokens there are.
const (
	PersonalAccess = "lsp"
	Agent          = "lsa"
)

const (
	randomBytes    = 32
	randomLength   = 52
	checksumLength = 7
)

// ErrMalformed says that a string cannot be a token of the wanted kind: wrong prefix, length, alphabet or checksum.
var ErrMalformed = errors.New("is not a token of this kind: copy it whole, as it was shown when it was made")

// Hash is what is stored of a token.
type Hash [sha256.Size]byte

// New makes a token.
func New(prefix string) (string, Hash) {
	var random [randomBytes]byte
	// Never fails: it ends the process where the system has no randomness.
	_, _ = rand.Read(random[:])
	body := prefix + "_" + encoding().EncodeToString(random[:])
	value := body + checksum(body)
	return value, sha256.Sum256([]byte(value))
}

// Parse checks a token's shape and returns its hash, to look it up by. The error never contains the token.
func Parse(prefix, value string) (Hash, error) {
	if len(value) != len(prefix)+1+randomLength+checksumLength || !strings.HasPrefix(value, prefix+"_") {
		return Hash{}, ErrMalformed
	}
	body := value[:len(value)-checksumLength]
	if _, err := encoding().DecodeString(body[len(prefix)+1:]); err != nil || value[len(body):] != checksum(body) {
		return Hash{}, ErrMalformed
	}
	return sha256.Sum256([]byte(value)), nil
}

func checksum(body string) string {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.ChecksumIEEE([]byte(body)))
	return encoding().EncodeToString(sum[:])
}

func encoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}
