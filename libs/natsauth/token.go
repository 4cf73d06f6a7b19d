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

	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
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

// TokenPattern matches every token, for scanners: the routable form of personal access tokens, see package routable; or
// prefix, underscore, 58 characters of lower-case base32.
const TokenPattern = `\b(?:lsp_[A-Za-z0-9_-]{27,240}\.01\.[0-9a-z]{9}|ls[aps]_[a-z2-7]{58})\b`

// ErrMalformedToken is wrapped by [HashToken] for text that is not a token of the given kind.
var ErrMalformedToken = errors.New("malformed token")

// NewToken returns a token of 256 random bits and a checksum. The checksum detects mistyped tokens, and false
// positives of scanners, offline. Show the token once and store its hash.
func NewToken(kind TokenKind) string {
	raw := make([]byte, tokenRandom, tokenRandom+tokenChecksum)
	rand.Read(raw) // Read never returns an error.

	return string(kind) + "_" + tokenEncoding().EncodeToString(appendChecksum(kind, raw))
}

// NewPersonalToken returns a personal access token of 128 random bits with a checksum. It names its cell and its user:
// a router finds the cell by it. Older tokens are those of [NewToken] and stay valid. Show the token once and store its
// hash.
func NewPersonalToken(cell topology.Cell, userID int64) (string, error) {
	token, err := routable.New(routable.Personal, routable.Payload{Cell: cell, User: userID})
	if err != nil {
		return "", fmt.Errorf("make a personal access token: %w", err)
	}
	return token, nil
}

// TokenHash is what is stored of a token.
type TokenHash [sha256.Size]byte

// HashToken checks the token's form and returns its hash to store or to look up. The hash is plain SHA-256. Salting
// and stretching are not needed, because 128 random bits cannot be guessed. An equal hash is found through an
// index, without comparing secrets in time that depends on them. Personal access tokens have two forms, see
// [NewPersonalToken].
func HashToken(kind TokenKind, token string) (TokenHash, error) {
	// Only routable tokens have a dot.
	if kind == TokenPersonal && strings.Contains(token, ".") {
		return hashRoutable(token)
	}

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

func hashRoutable(token string) (TokenHash, error) {
	parsed, err := routable.Parse(token)
	if err != nil {
		return TokenHash{}, fmt.Errorf("%w: %w", ErrMalformedToken, err)
	}
	if parsed.Prefix != routable.Personal {
		return TokenHash{}, fmt.Errorf("%w: not of the form %s…", ErrMalformedToken, routable.Personal)
	}

	return sha256.Sum256([]byte(token)), nil
}

func appendChecksum(kind TokenKind, raw []byte) []byte {
	return binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(append([]byte(kind), raw...)))
}

func tokenEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}
