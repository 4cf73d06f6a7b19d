package natsauth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// TokenKind is the kind of a token and its prefix. People and secret scanners recognise the prefix.
type TokenKind string

const (
	// TokenAgent lets an agent connect to NATS.
	TokenAgent TokenKind = "lsa"
	// TokenPersonal lets a person or a program use the API.
	TokenPersonal TokenKind = "lsp"
	// TokenSubscriber lets a tool outside of Lockstep connect to NATS, to read.
	TokenSubscriber TokenKind = "lss"
)

const (
	tokenRandom   = 32
	tokenChecksum = 4
)

// TokenPattern matches every token, for scanners: prefix, underscore, 58 characters of lower-case
// base32.
const TokenPattern = `\bls[aps]_[a-z2-7]{58}\b`

// ErrMalformedToken is wrapped by [HashToken] for text that is not a token of the given kind.
var ErrMalformedToken = errors.New("malformed token")

// NewToken returns a token of 256 random bits and a checksum. The checksum detects mistyped tokens, and false
// positives of scanners, offline. Show the token once and store its hash.
func NewToken(kind TokenKind) string {
	raw := make([]byte, tokenRandom, tokenRandom+tokenChecksum)
	rand.Read(raw) // Read never returns an error.

	return string(kind) + "_" + tokenEncoding().EncodeToString(appendChecksum(kind, raw))
}

// TokenHash is what is stored of a token.
type TokenHash [sha256.Size]byte

// HashToken checks the token's form and returns its hash to store or to look up. The hash is plain SHA-256. Salting
// and stretching are not needed, because 256 random bits cannot be guessed. An equal hash is found through an
// index, without comparing secrets in time that depends on them.
func HashToken(kind TokenKind, token string) (TokenHash, error) {
	encoded, found := strings.CutPrefix(token, string(kind)+"_")
	if !found || len(encoded) != tokenEncoding().EncodedLen(tokenRandom+tokenChecksum) {
		return TokenHash{}, fmt.Errorf("%w: not of the form %s_…", ErrMalformedToken, kind)
	}

	raw, err := tokenEncoding().DecodeString(encoded)
	if err != nil || len(raw) != tokenRandom+tokenChecksum {
		return TokenHash{}, fmt.Errorf("%w: contains invalid characters", ErrMalformedToken)
	}

	// Encoding again catches spare bits in the last character, so that every token has one
	// spelling.
	whole := appendChecksum(kind, raw[:tokenRandom:tokenRandom])
	if tokenEncoding().EncodeToString(whole) != encoded {
		return TokenHash{}, fmt.Errorf("%w: wrong checksum: check that the token was copied completely", ErrMalformedToken)
	}

	return sha256.Sum256([]byte(token)), nil
}

func appendChecksum(kind TokenKind, raw []byte) []byte {
	return binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(append([]byte(kind), raw...)))
}

func tokenEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}
