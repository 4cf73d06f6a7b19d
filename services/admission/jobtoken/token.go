// Package jobtoken makes the tokens with which a controller reads about a job that it decides about. A token is random,
// and the service stores its hash only.
package jobtoken

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

const (
	// Prefix of every token, for programs that search for leaked secrets.
	Prefix = "lsaj_"
	// Path of the endpoints that accept the tokens.
	Path = "/admission/v1"

	secretBytes = 32
)

// Token does not print.
type Token struct{ text string }

// Reveal returns the token for the request to the controller.
func (t Token) Reveal() string { return t.text }

// String hides the token.
func (Token) String() string { return "[token]" }

// GoString hides the token.
func (t Token) GoString() string { return t.String() }

// Hash is what is stored of a token.
type Hash [sha256.Size]byte

// New returns a random token and its hash.
func New() (Token, Hash) {
	var secret [secretBytes]byte
	if _, err := rand.Read(secret[:]); err != nil { // it never fails
		panic(err)
	}
	text := Prefix + base64.RawURLEncoding.EncodeToString(secret[:])
	return Token{text}, sha256.Sum256([]byte(text))
}

// Parse returns the hash of a token that a controller sends; false if it is malformed.
func Parse(text string) (Hash, bool) {
	encoded, found := strings.CutPrefix(text, Prefix)
	if !found || len(encoded) != base64.RawURLEncoding.EncodedLen(secretBytes) {
		return Hash{}, false
	}
	return sha256.Sum256([]byte(text)), true
}
