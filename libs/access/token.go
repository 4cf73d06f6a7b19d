package access

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"lockstep.internal/libs/topology"
)

// TokenLifetime is the validity of an access token.
const TokenLifetime = 5 * time.Minute

// mediaType separates access tokens from other JWTs signed with the same key (RFC 9068).
const mediaType = "at+jwt"

// Issuer returns the issuer of a cell's access tokens.
func Issuer(cell topology.Cell) string { return topology.Root + "/" + string(cell) + "/state" }

// Grant is the content of an access token.
type Grant struct {
	// Issuer, see [Issuer].
	Issuer string
	// Audience are the services that may accept it.
	Audience []string
	// UserID is the owner of the token.
	UserID int64
	// Admin reports whether the user was an administrator of the cell at IssuedAt.
	Admin bool
	// TokenID is the personal access token that was exchanged. Zero for none.
	TokenID int64
	// TokenExpiresAt is its expiry, at which streams end. Zero for never.
	TokenExpiresAt time.Time
	// Scope of the personal access token. Empty means [ScopeAdmin].
	Scope Scope
	// IssuedAt and ExpiresAt bound the validity; encoded in whole seconds.
	IssuedAt, ExpiresAt time.Time
}

// claims is the JWT encoding of a Grant.
type claims struct {
	jwt.RegisteredClaims

	Admin bool `json:"admin,omitempty"`

	TokenID        int64            `json:"token_id,omitempty"`
	TokenExpiresAt *jwt.NumericDate `json:"token_expires_at,omitempty"`
	// Scope is the claim of RFC 8693. A state service without scopes does not set it.
	Scope Scope `json:"scope,omitempty"`
}

// ErrInvalidGrant is wrapped by what [Sign] returns for a grant that no verifier would accept.
var ErrInvalidGrant = errors.New("invalid grant")

// Sign returns the signed token.
func Sign(key ed25519.PrivateKey, keyID string, g Grant) (string, error) {
	if g.Issuer == "" || len(g.Audience) == 0 || g.UserID <= 0 || keyID == "" || !g.ExpiresAt.After(g.IssuedAt) {
		return "", fmt.Errorf("%w: issuer, audience, user, key id and a lifetime are required", ErrInvalidGrant)
	}
	if len(key) != ed25519.PrivateKeySize {
		return "", fmt.Errorf("%w: a private key of %d bytes", ErrInvalidGrant, len(key))
	}
	content := claims{Admin: g.Admin, TokenID: g.TokenID, Scope: g.Scope, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: g.Issuer, Audience: g.Audience, Subject: strconv.FormatInt(g.UserID, 10), ID: uuid.NewString(),
		IssuedAt: jwt.NewNumericDate(g.IssuedAt), ExpiresAt: jwt.NewNumericDate(g.ExpiresAt),
	}}
	if !g.TokenExpiresAt.IsZero() {
		content.TokenExpiresAt = jwt.NewNumericDate(g.TokenExpiresAt)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, content)
	token.Header["kid"], token.Header["typ"] = keyID, mediaType
	signed, err := token.SignedString(key)
	if err != nil {
		return "", fmt.Errorf("sign an access token: %w", err)
	}
	return signed, nil
}
