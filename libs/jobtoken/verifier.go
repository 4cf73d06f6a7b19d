package jobtoken

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"lockstep.internal/libs/topology"
)

// DefaultSkew is the tolerated difference of clocks.
const DefaultSkew = 30 * time.Second

// Keys finds the public key of a cell by its id. It must be safe for concurrent use.
type Keys func(cell topology.Cell, keyID string) (ed25519.PublicKey, bool)

var (
	// ErrMalformed is wrapped by errors about a text that is no job token.
	ErrMalformed = errors.New("not a job token")
	// ErrUnknownKey is wrapped by errors about a token whose cell has no such key.
	ErrUnknownKey = errors.New("the cell has no such key for job tokens")
	// ErrForged is wrapped by errors about a wrong signature.
	ErrForged = errors.New("the signature of the job token is wrong")
	// ErrExpired is wrapped by errors about a token outside of its validity.
	ErrExpired = errors.New("the job token has expired or is not valid yet")
)

// Verifier accepts the tokens of the cells whose keys it knows. It is safe for concurrent use.
type Verifier struct {
	keys Keys
	now  func() time.Time
	// parser checks the signature and no claim.
	parser *jwt.Parser
}

// NewVerifier makes a verifier. now defaults to time.Now.
func NewVerifier(keys Keys, now func() time.Time) *Verifier {
	if now == nil {
		now = time.Now
	}
	return &Verifier{keys: keys, now: now, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithStrictDecoding(),
		jwt.WithoutClaimsValidation(),
	)}
}

// Verify returns the content of a valid token. Errors wrap one of the errors above.
func (v *Verifier) Verify(text string) (Claims, error) {
	claims, err := v.Authentic(text)
	if err != nil {
		return Claims{}, err
	}
	now := v.now()
	if now.Before(claims.IssuedAt.Add(-DefaultSkew)) || !now.Before(claims.ExpiresAt.Add(DefaultSkew)) {
		return Claims{}, ErrExpired
	}
	return claims, nil
}

// Authentic returns the content of a token that its cell has signed, also when it has expired. Errors wrap one of the
// errors above except [ErrExpired].
func (v *Verifier) Authentic(text string) (Claims, error) {
	encoded, found := strings.CutPrefix(text, Prefix)
	if !found || len(text) > MaxLength {
		return Claims{}, fmt.Errorf("%w: it does not begin with %s, or is longer than %d bytes",
			ErrMalformed, Prefix, MaxLength)
	}
	var content payload
	_, err := v.parser.ParseWithClaims(encoded, &content, func(t *jwt.Token) (any, error) {
		if kind, _ := t.Header["typ"].(string); kind != mediaType {
			return nil, ErrMalformed
		}
		keyID, _ := t.Header["kid"].(string)
		cell := topology.Cell(content.Cell)
		if !validKeyID(keyID) || topology.ValidateCell(content.Cell) != nil {
			return nil, ErrUnknownKey
		}
		// The cell is a claim until the signature with its key is verified.
		key, known := v.keys(cell, keyID)
		if !known || len(key) != ed25519.PublicKeySize {
			return nil, ErrUnknownKey
		}
		return key, nil
	})
	if err != nil {
		return Claims{}, explain(err)
	}
	claims, err := content.claims()
	if err != nil {
		return Claims{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return claims, nil
}

// explain returns an error without the text of the library, which may contain the token.
func explain(err error) error {
	for _, reason := range []error{ErrUnknownKey, ErrMalformed} {
		if errors.Is(err, reason) {
			return reason
		}
	}
	if errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		return ErrForged
	}
	return fmt.Errorf("%w: malformed JWT", ErrMalformed)
}
