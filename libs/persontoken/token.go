package persontoken

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"lockstep.internal/libs/topology"
)

const (
	// Issuer of the tokens.
	Issuer = "lockstep-gateway"
	// MaxLifetime of a token.
	MaxLifetime = time.Minute
	// MaxLength of a token in bytes.
	MaxLength = 2 << 10

	// mediaType separates the tokens from other JWTs.
	mediaType = "person+jwt"
	// skew is the tolerated difference between the clocks of the gateway and of the state service.
	skew = 30 * time.Second
	// maxScopes is the maximum number of scopes of a token.
	maxScopes = 8
)

// Audience returns the audience of the tokens: the state service of a cell.
func Audience(cell topology.Cell) string { return topology.Root + "/" + string(cell) + "/state" }

type claims struct {
	jwt.RegisteredClaims

	Scopes []Scope `json:"scope"`
}

// ErrInvalid is wrapped by the errors of [Signer.Sign] for tokens that no verifier would accept, and by those of
// [Verify]. Their text is for people.
var ErrInvalid = errors.New("the gateway's token is refused")

// Signer makes the tokens of one gateway. It is safe for concurrent use.
type Signer struct {
	key  ed25519.PrivateKey
	id   string
	cell topology.Cell
}

// NewSigner returns the signer of a gateway of the cell. The key must have the size of an Ed25519 key.
func NewSigner(key ed25519.PrivateKey, cell topology.Cell) (*Signer, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("sign tokens for people: a private key of %d bytes instead of %d",
			len(key), ed25519.PrivateKeySize)
	}
	if err := topology.ValidateCell(string(cell)); err != nil {
		return nil, fmt.Errorf("sign tokens for people: %w", err)
	}
	public, _ := key.Public().(ed25519.PublicKey)
	return &Signer{key: key, id: keyID(public), cell: cell}, nil
}

// Sign returns a token with which the gateway acts for the user from now on, for [MaxLifetime].
func (s *Signer) Sign(userID int64, scopes []Scope, now time.Time) (string, error) {
	if err := validScopes(scopes); err != nil || userID <= 0 {
		return "", fmt.Errorf("%w: a user and known scopes are required", ErrInvalid)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{Scopes: scopes, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: Issuer, Audience: jwt.ClaimStrings{Audience(s.cell)}, Subject: strconv.FormatInt(userID, 10),
		ID: uuid.NewString(), IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(MaxLifetime)),
	}})
	token.Header["kid"], token.Header["typ"] = s.id, mediaType
	signed, err := token.SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign a token for user %d: %w", userID, err)
	}
	return signed, nil
}

func validScopes(scopes []Scope) error {
	if len(scopes) == 0 || len(scopes) > maxScopes {
		return fmt.Errorf("%w: it has %d scopes instead of 1 to %d", ErrInvalid, len(scopes), maxScopes)
	}
	for _, s := range scopes {
		if !s.Valid() {
			return fmt.Errorf("%w: the scope %.40q is unknown", ErrInvalid, s)
		}
	}
	return nil
}

// Person is the content of a valid token.
type Person struct {
	UserID    int64
	Scopes    []Scope
	ExpiresAt time.Time
}

// Permits reports whether the token has the scope.
func (p Person) Permits(scope Scope) bool { return slices.Contains(p.Scopes, scope) }

// Is reports whether a text may be a token, rather than a personal access token. It does not verify anything.
func Is(text string) bool { return strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2 }

// Verify returns the person of a token that one of the keys has signed for the state service of the cell. It tolerates
// a clock difference of 30 seconds. Errors wrap [ErrInvalid].
func Verify(keys []ed25519.PublicKey, cell topology.Cell, token string, now time.Time) (Person, error) {
	if len(token) > MaxLength {
		return Person{}, fmt.Errorf("%w: it is longer than %d bytes", ErrInvalid, MaxLength)
	}
	if strings.ContainsAny(token, "\r\n") { // base64 decoders skip them
		return Person{}, fmt.Errorf("%w: it is malformed", ErrInvalid)
	}
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithIssuer(Issuer),
		jwt.WithAudience(Audience(cell)),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(skew),
		jwt.WithTimeFunc(func() time.Time { return now }),
		jwt.WithStrictDecoding(),
	)
	var c claims
	_, err := parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) { return find(keys, t) })
	if err != nil {
		return Person{}, explain(err, cell)
	}
	if c.IssuedAt == nil || c.ExpiresAt.Sub(c.IssuedAt.Time) > MaxLifetime {
		return Person{}, fmt.Errorf("%w: its lifetime exceeds %s", ErrInvalid, MaxLifetime)
	}
	id, err := strconv.ParseInt(c.Subject, 10, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 10) != c.Subject {
		return Person{}, fmt.Errorf("%w: its subject is not a user", ErrInvalid)
	}
	if err := validScopes(c.Scopes); err != nil {
		return Person{}, err
	}
	return Person{UserID: id, Scopes: c.Scopes, ExpiresAt: c.ExpiresAt.Time}, nil
}

var (
	errWrongType  = errors.New("it is not a token of a gateway")
	errUnknownKey = errors.New("its key is not one of gateway.public_keys")
)

// find returns the key that the token names. The token does not select the algorithm; the parser's configuration does.
func find(keys []ed25519.PublicKey, t *jwt.Token) (ed25519.PublicKey, error) {
	if kind, _ := t.Header["typ"].(string); !strings.EqualFold(kind, mediaType) {
		return nil, errWrongType
	}
	id, _ := t.Header["kid"].(string)
	for _, key := range keys {
		if len(key) == ed25519.PublicKeySize && keyID(key) == id {
			return key, nil
		}
	}
	return nil, errUnknownKey
}

// explain returns an error without the text of the library, which may contain the token.
func explain(err error, cell topology.Cell) error {
	for _, reason := range []struct {
		err  error
		text string
	}{
		{errWrongType, errWrongType.Error()},
		{errUnknownKey, errUnknownKey.Error()},
		{jwt.ErrTokenMalformed, "it is malformed"},
		{jwt.ErrTokenExpired, "it has expired: sign a new one for each request"},
		{jwt.ErrTokenUsedBeforeIssued, "its issue time is in the future: check the clocks"},
		{jwt.ErrTokenNotValidYet, "it is not valid yet"},
		{jwt.ErrTokenInvalidAudience, "it is not for " + Audience(cell)},
		{jwt.ErrTokenInvalidIssuer, "its issuer is not " + Issuer},
		{jwt.ErrTokenRequiredClaimMissing, "a required claim is missing"},
		{jwt.ErrTokenSignatureInvalid, "its signature is wrong"},
	} {
		if errors.Is(err, reason.err) {
			return fmt.Errorf("%w: %s", ErrInvalid, reason.text)
		}
	}
	return ErrInvalid
}
