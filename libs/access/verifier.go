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
	// maxToken is far more than a token of state has, in bytes.
	maxToken             = 8 << 10
	defaultStreamsLifeIn = time.Hour
)

// Directory is what a verifier asks; a [directory.Directory].
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
	// Skew is how far the clocks of state and of this service may be apart. Defaults to 30 s; at
	// most a minute.
	Skew time.Duration
	// StreamLifetime is how long a stream may live that was begun with one token. Defaults to an
	// hour.
	StreamLifetime time.Duration
	// Now defaults to time.Now.
	Now func() time.Time
}

// Caller is who calls.
type Caller struct {
	UserID int64
	// Admin may do everything in the cell.
	Admin bool
	// ExpiresAt is when the token ends by which the caller was let in, by the clock of who signed
	// it: the verifier may accept it for a little longer. Zero where there was no token.
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
		cfg.StreamLifetime = defaultStreamsLifeIn
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Verifier{cfg: cfg, parser: jwt.NewParser(
		jwt.WithValidMethods(
			[]string{jwt.SigningMethodEdDSA.Alg()},
		),
		jwt.WithIssuer(Issuer(cfg.Cell)),
		jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(cfg.Skew),
		jwt.WithTimeFunc(cfg.Now),
		jwt.WithStrictDecoding(),
	)}, nil
}

// Verify returns who the token is of. Its errors are faults.
func (v *Verifier) Verify(token string) (Caller, error) {
	if !v.cfg.Directory.Ready() {
		return Caller{}, fault.New(errcode.Unavailable, "this service has not read the directory of users yet: try again")
	}
	if strings.HasPrefix(token, personal) {
		return Caller{}, fault.New(
			errcode.Unauthenticated,
			"this is a personal access token: exchange it at the service state for an access token, and send that",
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
		return Caller{}, fault.New(errcode.Unauthenticated, "the access token names no user")
	}
	caller, err := v.caller(id, claimed.Admin)
	if err != nil {
		return Caller{}, err
	}
	caller.ExpiresAt = claimed.ExpiresAt.Time
	return caller, nil
}

// personal begins personal access tokens.
const personal = "lsp_"

var (
	errWrongType  = errors.New("it is no access token")
	errUnknownKey = errors.New("its key is not known here: it is no token of this cell, or void, or too new")
)

// key finds the key that the token names. A token cannot choose how it is verified: the algorithm
// is the parser's, and the key is of that algorithm.
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

// withinKey checks that the token lived when its key did: one that was stolen after its time signs
// nothing that counts.
func (v *Verifier) withinKey(claimed claims, key directory.Key) error {
	if claimed.IssuedAt == nil || claimed.IssuedAt.Before(key.NotBefore.Add(-v.cfg.Skew)) ||
		claimed.ExpiresAt.After(key.NotAfter.Add(v.cfg.Skew)) {
		return fault.New(errcode.Unauthenticated, "the access token is not of the time of its key: get a new one")
	}
	if claimed.ExpiresAt.Sub(claimed.IssuedAt.Time) > TokenLifetime+v.cfg.Skew {
		return fault.New(errcode.Unauthenticated, "the access token lives for longer than %s: get a new one", TokenLifetime)
	}
	return nil
}

// caller is the user as the directory knows it now.
func (v *Verifier) caller(id int64, admin bool) (Caller, error) {
	user, known := v.cfg.Directory.User(id)
	switch {
	case !known:
		return Caller{}, fault.New(
			errcode.Unauthenticated, "user %d of the access token does not exist, or is too new to be known here", id,
		)
	case user.Blocked:
		return Caller{}, fault.New(errcode.PermissionDenied, "user %d is blocked: ask an administrator", id)
	default:
		return Caller{UserID: id, Admin: admin && user.Admin}, nil
	}
}

// explain says what is wrong with a token. The library's texts quote parts of it.
func (v *Verifier) explain(err error) error {
	for _, reason := range []struct {
		err  error
		text string
	}{
		{errWrongType, errWrongType.Error()},
		{errUnknownKey, errUnknownKey.Error()},
		{jwt.ErrTokenMalformed, "it is malformed"},
		{jwt.ErrTokenExpired, "it is over: get a new one"},
		{jwt.ErrTokenUsedBeforeIssued, "it is from the future: are the clocks right?"},
		{jwt.ErrTokenNotValidYet, "it is not valid yet"},
		{jwt.ErrTokenInvalidAudience, "it is not for the service " + v.cfg.Audience},
		{jwt.ErrTokenInvalidIssuer, "it is not by " + Issuer(v.cfg.Cell)},
		{jwt.ErrTokenRequiredClaimMissing, "it lacks a claim"},
		{jwt.ErrTokenSignatureInvalid, "its signature is wrong"},
	} {
		if errors.Is(err, reason.err) {
			return fault.New(errcode.Unauthenticated, "the access token is refused: %s", reason.text)
		}
	}
	return fault.New(errcode.Unauthenticated, "the access token is refused")
}
