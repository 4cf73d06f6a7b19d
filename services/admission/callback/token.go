package callback

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Prefix of every token, for programs that search for leaked secrets.
const Prefix = "lsac_"

const secretBytes = 32

// Subject is what a token is good for.
type Subject struct {
	JobID, ControllerID int64
	Attempt             int
}

// Token is the secret that a controller sends back. It does not print.
type Token struct{ text string }

// Reveal returns the token for the request to the controller.
func (t Token) Reveal() string { return t.text }

// String hides the token.
func (Token) String() string { return "[token]" }

// GoString hides the token.
func (t Token) GoString() string { return t.String() }

// Hash is what is stored of a token. It depends on the subject.
type Hash [sha256.Size]byte

// New returns a random token and its hash for a subject.
func New(s Subject) (Token, Hash) { return newToken(rand.Reader, s) }

func newToken(random io.Reader, s Subject) (Token, Hash) {
	var secret [secretBytes]byte
	if _, err := io.ReadFull(random, secret[:]); err != nil { // crypto/rand never fails
		panic(err)
	}
	return Token{Prefix + base64.RawURLEncoding.EncodeToString(secret[:])}, hash(secret[:], s)
}

func hash(secret []byte, s Subject) (out Hash) {
	mac := hmac.New(sha256.New, secret)
	var bound [24]byte
	binary.BigEndian.PutUint64(bound[0:], uint64(s.JobID))
	binary.BigEndian.PutUint64(bound[8:], uint64(s.ControllerID))
	binary.BigEndian.PutUint64(bound[16:], uint64(s.Attempt))
	mac.Write(bound[:])
	copy(out[:], mac.Sum(nil))
	return out
}

// Errors of [Stored.Use]. None tells whether another token would be valid.
var (
	// ErrInvalid reports a token that is malformed, or is not the one of this attempt.
	ErrInvalid = errors.New("the callback token is not valid for this job, controller and attempt")
	// ErrUsed reports a token that has answered.
	ErrUsed = errors.New("the callback token was used: a controller answers once")
	// ErrExpired reports a token whose round has ended.
	ErrExpired = errors.New("the callback token has expired: the time to answer has passed")
)

// Stored is what is stored of a token.
type Stored struct {
	Subject   Subject
	Hash      Hash
	ExpiresAt time.Time
	// UsedAt is the zero time for a token that was not used.
	UsedAt time.Time
}

// Use checks a token that a controller sends for a subject, and returns what to store. Nothing is changed by a token
// that is refused. The caller stores the result by compare-and-set on UsedAt, so that of two callbacks one wins.
func (s Stored) Use(text string, subject Subject, now time.Time) (Stored, error) {
	secret, err := parse(text)
	if err != nil {
		return s, err
	}
	presented := hash(secret, subject)
	if subtle.ConstantTimeCompare(presented[:], s.Hash[:]) != 1 || subject != s.Subject {
		return s, ErrInvalid
	}
	switch {
	case !s.UsedAt.IsZero():
		return s, ErrUsed
	case !now.Before(s.ExpiresAt):
		return s, ErrExpired
	}
	s.UsedAt = now
	return s, nil
}

func parse(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, Prefix)
	if !ok || len(encoded) != base64.RawURLEncoding.EncodedLen(secretBytes) {
		return nil, ErrInvalid
	}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return secret, nil
}
