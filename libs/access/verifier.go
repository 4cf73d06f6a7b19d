package access

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	defaultSkew = 30 * time.Second
	maxSkew     = time.Minute
	// maxToken is the maximum size of a token in bytes.
	maxToken = 8 << 10
)

const (
	// DefaultStreamLifetime is the default maximum lifetime of a stream.
	DefaultStreamLifetime = 24 * time.Hour
	// MaxStreamLifetime is the highest maximum lifetime of a stream. The directory names revoked tokens for longer.
	MaxStreamLifetime = 24 * time.Hour
	// RevocationPeriod is how long the directory names a revoked token: until its last stream and its last access token
	// have ended, with an hour for clocks that differ.
	RevocationPeriod = MaxStreamLifetime + time.Hour
)

// ValidateStreamLifetime returns an error if a setting is not a lifetime of streams.
func ValidateStreamLifetime(lifetime time.Duration) error {
	if lifetime <= 0 || lifetime > MaxStreamLifetime {
		return fmt.Errorf("%s is not positive, or above %s", lifetime, MaxStreamLifetime)
	}
	return nil
}

// Directory is the part of [directory.Directory] that a Verifier uses.
type Directory interface {
	Ready() bool
	Changed() <-chan struct{}
	User(id int64) (directory.User, bool)
	Key(id string) (directory.Key, bool)
}

// Config of a verifier.
type Config struct {
	// Directory is the service's copy. Required.
	Directory Directory
	// Cell whose tokens are accepted. Required.
	Cell topology.Cell
	// Audience is the name of this service, such as deploys. Required.
	Audience string
	// Skew is the tolerated clock difference to the state service. Defaults to 30 s; at most a minute.
	Skew time.Duration
	// StreamLifetime is the maximum lifetime of a stream. Defaults to [DefaultStreamLifetime]; at most
	// [MaxStreamLifetime].
	StreamLifetime time.Duration
	// Scopes of the procedures that [Verifier.Handler] serves. Others need [ScopeAdmin].
	Scopes Scopes
	// Now defaults to time.Now.
	Now func() time.Time
}

// Caller is the authenticated user of a request.
type Caller struct {
	UserID int64
	// Admin may do everything in the cell that Scope permits.
	Admin bool
	// Scope of the token.
	Scope Scope
	// TokenID is the personal access token that was exchanged; zero for none. TokenExpiresAt is its expiry; zero for
	// never.
	TokenID        int64
	TokenExpiresAt time.Time
	// ExpiresAt is the token's expiry by the issuer's clock. Skew is not included. Zero without a token.
	ExpiresAt time.Time
}

// Verifier accepts access tokens. It is safe for concurrent use.
type Verifier struct {
	cfg    Config
	parser *jwt.Parser
}

// ErrInvalidConfig is wrapped by errors about a configuration that cannot work.
var ErrInvalidConfig = errors.New("invalid access configuration")

// NewVerifier makes the verifier of one service.
func NewVerifier(cfg Config) (*Verifier, error) {
	if cfg.Directory == nil || cfg.Audience == "" {
		return nil, fmt.Errorf("%w: directory and audience are required", ErrInvalidConfig)
	}
	if err := topology.ValidateCell(string(cfg.Cell)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if cfg.Skew < 0 || cfg.Skew > maxSkew {
		return nil, fmt.Errorf("%w: skew %s is not between 0 and %s", ErrInvalidConfig, cfg.Skew, maxSkew)
	}
	if cfg.Skew == 0 {
		cfg.Skew = defaultSkew
	}
	if cfg.StreamLifetime == 0 {
		cfg.StreamLifetime = DefaultStreamLifetime
	}
	if err := ValidateStreamLifetime(cfg.StreamLifetime); err != nil {
		return nil, fmt.Errorf("%w: a stream's lifetime: %w", ErrInvalidConfig, err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Verifier{cfg: cfg, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithIssuer(Issuer(cfg.Cell)),
		jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(cfg.Skew),
		jwt.WithTimeFunc(cfg.Now),
		jwt.WithStrictDecoding(),
	)}, nil
}

// Verify returns the token's owner. Errors are faults.
func (v *Verifier) Verify(token string) (Caller, error) {
	if !v.cfg.Directory.Ready() {
		return Caller{}, fault.New(errcode.Unavailable, "the user directory is not loaded yet: try again")
	}
	if strings.HasPrefix(token, personalPrefix) {
		return Caller{}, fault.New(
			errcode.Unauthenticated,
			"this is a personal access token: exchange it for an access token at the state service",
		)
	}
	if len(token) > maxToken {
		return Caller{}, fault.New(errcode.Unauthenticated, "the access token is longer than %d bytes", maxToken)
	}
	var claimed claims
	var key directory.Key
	_, err := v.parser.ParseWithClaims(token, &claimed, func(t *jwt.Token) (any, error) {
		var err error
		key, err = v.key(t)
		return key.Public, err
	})
	if err != nil {
		return Caller{}, v.explain(err)
	}
	if err := v.withinKey(claimed, key); err != nil {
		return Caller{}, err
	}
	id, err := strconv.ParseInt(claimed.Subject, 10, 64)
	if err != nil || id <= 0 {
		return Caller{}, fault.New(errcode.Unauthenticated, "the access token has no valid subject")
	}
	caller := Caller{
		UserID: id, Admin: claimed.Admin, Scope: cmp.Or(claimed.Scope, ScopeAdmin), TokenID: claimed.TokenID,
		ExpiresAt: claimed.ExpiresAt.Time,
	}
	if claimed.TokenExpiresAt != nil {
		caller.TokenExpiresAt = claimed.TokenExpiresAt.Time
	}
	if !caller.Scope.Valid() {
		return Caller{}, fault.New(errcode.Unauthenticated, "the access token has the unknown scope %q", caller.Scope)
	}
	return CurrentCaller(v.cfg.Directory, caller)
}

// personalPrefix is the prefix of personal access tokens.
const personalPrefix = "lsp_"

var (
	errWrongType  = errors.New("it is not an access token")
	errUnknownKey = errors.New("unknown signing key: " +
		"the token is of another cell, expired, or newer than this service's directory")
)

// key returns the key that the token names. The token does not select the algorithm; the parser's configuration does.
func (v *Verifier) key(t *jwt.Token) (directory.Key, error) {
	if kind, _ := t.Header["typ"].(string); !strings.EqualFold(kind, mediaType) {
		return directory.Key{}, errWrongType
	}
	id, _ := t.Header["kid"].(string)
	key, known := v.cfg.Directory.Key(id)
	if !known {
		return directory.Key{}, errUnknownKey
	}
	return key, nil
}

// withinKey checks that the token's validity is within the key's. A key that leaks after its end is useless.
func (v *Verifier) withinKey(claimed claims, key directory.Key) error {
	if claimed.IssuedAt == nil || claimed.IssuedAt.Before(key.NotBefore.Add(-v.cfg.Skew)) ||
		claimed.ExpiresAt.After(key.NotAfter.Add(v.cfg.Skew)) {
		return fault.New(errcode.Unauthenticated,
			"the access token's validity is outside of its key's validity: get a new one")
	}
	if claimed.ExpiresAt.Sub(claimed.IssuedAt.Time) > TokenLifetime+v.cfg.Skew {
		return fault.New(errcode.Unauthenticated, "the access token's lifetime exceeds %s: get a new one", TokenLifetime)
	}
	return nil
}

// Users finds users. [directory.Directory] implements it.
type Users interface {
	User(id int64) (directory.User, bool)
}

// CurrentCaller returns an authenticated caller as the directory knows it now. Faults: unauthenticated for an unknown
// user and for a revoked token, permission_denied for a blocked user.
func CurrentCaller(users Users, c Caller) (Caller, error) {
	user, known := users.User(c.UserID)
	switch {
	case !known:
		return Caller{}, fault.New(
			errcode.Unauthenticated, "user %d of the access token does not exist, or was created just now: try again", c.UserID,
		)
	case user.Blocked:
		return Caller{}, fault.New(errcode.PermissionDenied, "user %d is blocked: ask an administrator", c.UserID)
	case user.Revoked(c.TokenID):
		return Caller{}, fault.New(
			errcode.Unauthenticated, "token %d, from which the access token was made, is revoked: create a new one", c.TokenID,
		)
	default:
		c.Admin = c.Admin && user.Admin
		return c, nil
	}
}

// explain maps an error of the parser to a fault without the library's text, which may contain the token.
func (v *Verifier) explain(err error) error {
	for _, reason := range []struct {
		err  error
		text string
	}{
		{errWrongType, errWrongType.Error()},
		{errUnknownKey, errUnknownKey.Error()},
		{jwt.ErrTokenMalformed, "it is malformed"},
		{jwt.ErrTokenExpired, "it has expired: get a new one"},
		{jwt.ErrTokenUsedBeforeIssued, "its issue time is in the future: check the clocks"},
		{jwt.ErrTokenNotValidYet, "it is not valid yet"},
		{jwt.ErrTokenInvalidAudience, "it is not for the service " + v.cfg.Audience},
		{jwt.ErrTokenInvalidIssuer, "its issuer is not " + Issuer(v.cfg.Cell)},
		{jwt.ErrTokenRequiredClaimMissing, "a required claim is missing"},
		{jwt.ErrTokenSignatureInvalid, "its signature is wrong"},
	} {
		if errors.Is(err, reason.err) {
			return fault.New(errcode.Unauthenticated, "the access token is refused: %s", reason.text)
		}
	}
	return fault.New(errcode.Unauthenticated, "the access token is refused")
}
