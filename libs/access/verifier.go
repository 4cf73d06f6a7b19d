package access

import (
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
	maxToken              = 8 << 10
	defaultStreamLifetime = time.Hour
)

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
	// StreamLifetime is the maximum lifetime of a stream. Defaults to an hour.
	StreamLifetime time.Duration
	// Now defaults to time.Now.
	Now func() time.Time
}

// Caller is the authenticated user of a request.
type Caller struct {
	UserID int64
	// Admin may do everything in the cell.
	Admin bool
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
	if cfg.Skew < 0 || cfg.Skew > maxSkew || cfg.StreamLifetime < 0 {
		return nil, fmt.Errorf(
			"%w: skew %s is not between 0 and %s, or a stream's lifetime is negative", ErrInvalidConfig, cfg.Skew, maxSkew,
		)
	}
	if cfg.Skew == 0 {
		cfg.Skew = defaultSkew
	}
	if cfg.StreamLifetime == 0 {
		cfg.StreamLifetime = defaultStreamLifetime
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
	caller, err := v.caller(id, claimed.Admin)
	if err != nil {
		return Caller{}, err
	}
	caller.ExpiresAt = claimed.ExpiresAt.Time
	return caller, nil
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

// caller is the user as the directory knows it now.
func (v *Verifier) caller(id int64, admin bool) (Caller, error) {
	user, known := v.cfg.Directory.User(id)
	switch {
	case !known:
		return Caller{}, fault.New(
			errcode.Unauthenticated, "user %d of the access token does not exist, or was created just now: try again", id,
		)
	case user.Blocked:
		return Caller{}, fault.New(errcode.PermissionDenied, "user %d is blocked: ask an administrator", id)
	default:
		return Caller{UserID: id, Admin: admin && user.Admin}, nil
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
