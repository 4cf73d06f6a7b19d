package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// MaxSkew is the tolerated clock skew.
	MaxSkew = 5 * time.Second
	// minSecret is the minimum length of a secret in bytes: the output size of HS256 (RFC 7518, section 3.2).
	minSecret = 32
	// maxSecrets accepted at the same time: the old and the new one.
	maxSecrets = 2
	// maxToken is the maximum size of a token in bytes.
	maxToken = 8 << 10
)

// Config of a [Verifier] and a [Signer].
type Config struct {
	// Issuer and Audience that a token must name. Required.
	Issuer, Audience string
	// Secrets of at least 32 bytes each, one or two. The first one signs.
	Secrets [][]byte
	// Lifetime is the maximum lifetime of a token. Defaults to no limit.
	Lifetime time.Duration
	// Now is the clock. Defaults to [time.Now].
	Now func() time.Time
}

// ErrInvalidConfig is wrapped by errors of [NewVerifier] and [NewSigner].
var ErrInvalidConfig = errors.New("invalid configuration")

func (c Config) validate() (Config, error) {
	if c.Issuer == "" || c.Audience == "" {
		return c, fmt.Errorf("%w: issuer and audience are required", ErrInvalidConfig)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, ValidateSecrets(c.Secrets)
}

// ValidateSecrets returns an error that wraps [ErrInvalidConfig] for insecure secrets.
func ValidateSecrets(secrets [][]byte) error {
	if len(secrets) == 0 || len(secrets) > maxSecrets {
		return fmt.Errorf("%w: %d secrets: must be one, or two during rotation", ErrInvalidConfig, len(secrets))
	}
	for _, s := range secrets {
		if len(s) < minSecret {
			return fmt.Errorf("%w: a secret has %d bytes: must have at least %d; create one with: openssl rand -base64 48",
				ErrInvalidConfig, len(s), minSecret)
		}
	}
	return nil
}

// secrets that can be replaced.
type secrets struct{ current atomic.Pointer[[][]byte] }

func (s *secrets) get() [][]byte { return *s.current.Load() }

// SetSecrets replaces the secrets. It returns an error that wraps [ErrInvalidConfig] and changes nothing if they are
// insecure.
func (s *secrets) SetSecrets(replacement [][]byte) error {
	if err := ValidateSecrets(replacement); err != nil {
		return err
	}
	s.current.Store(&replacement)
	return nil
}

// Verifier checks tokens. It may be used by many goroutines.
type Verifier struct {
	secrets

	cfg    Config
	parser *jwt.Parser
}

// NewVerifier returns an error that wraps [ErrInvalidConfig] for an insecure configuration.
func NewVerifier(cfg Config) (*Verifier, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	v := &Verifier{cfg: cfg, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{"HS256", "HS384", "HS512"}), jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(), jwt.WithLeeway(MaxSkew), jwt.WithTimeFunc(cfg.Now), jwt.WithStrictDecoding(),
	)}
	return v, v.SetSecrets(cfg.Secrets)
}

// Caller is the subject of a token.
type Caller struct {
	// Subject is the sub claim, or the issuer if there is none.
	Subject string
	// ExpiresAt is when the token expires.
	ExpiresAt time.Time
	// Secret identifies the secret that signed the token; see [Verifier.Accepts].
	Secret SecretID
}

// SecretID is the hash of a secret.
type SecretID [sha256.Size]byte

// Accepts reports whether the secret of an earlier token is still accepted.
func (v *Verifier) Accepts(id SecretID) bool {
	return slices.ContainsFunc(v.get(), func(secret []byte) bool { return sha256.Sum256(secret) == id })
}

// Verify checks a token and returns its caller.
func (v *Verifier) Verify(token string) (Caller, error) {
	if len(token) > maxToken {
		return Caller{}, fault.New(errcode.Unauthenticated, "the token has %d bytes, more than %d", len(token), maxToken)
	}
	var claims jwt.RegisteredClaims
	var signedWith SecretID
	err := errors.New("no secret")
	for _, secret := range v.get() {
		claims, signedWith = jwt.RegisteredClaims{}, sha256.Sum256(secret)
		key := func(*jwt.Token) (any, error) { return secret, nil }
		if _, err = v.parser.ParseWithClaims(token, &claims, key); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			break
		}
	}
	if err != nil {
		return Caller{}, tokenError(err)
	}
	if v.cfg.Lifetime > 0 {
		if claims.IssuedAt == nil {
			return Caller{}, fault.New(errcode.Unauthenticated, "the token has no iat claim")
		}
		if life := claims.ExpiresAt.Sub(claims.IssuedAt.Time); life > v.cfg.Lifetime {
			return Caller{}, fault.New(errcode.Unauthenticated, "the token is valid for %s: the maximum is %s", life,
				v.cfg.Lifetime)
		}
	}
	if claims.Subject == "" {
		claims.Subject = claims.Issuer
	}
	return Caller{Subject: claims.Subject, ExpiresAt: claims.ExpiresAt.Time, Secret: signedWith}, nil
}

// tokenError translates an error of the JWT library into a message for the token's issuer.
func tokenError(err error) error {
	for _, r := range []struct {
		is  error
		why string
	}{
		{jwt.ErrTokenMalformed, "is not a JWT"},
		{jwt.ErrTokenSignatureInvalid, "is not signed with a secret of this relay"},
		{jwt.ErrTokenRequiredClaimMissing, "lacks exp, iss or aud"},
		{jwt.ErrTokenExpired, "has expired"},
		{jwt.ErrTokenNotValidYet, "is not valid yet (nbf): check the clocks"},
		{jwt.ErrTokenUsedBeforeIssued, "was issued in the future (iat): check the clocks"},
		{jwt.ErrTokenInvalidAudience, "is meant for another service (aud)"},
		{jwt.ErrTokenInvalidIssuer, "is from another issuer (iss)"},
	} {
		if errors.Is(err, r.is) {
			return fault.New(errcode.Unauthenticated, "the token %s", r.why)
		}
	}
	return fault.New(errcode.Unauthenticated, "the token is invalid")
}

// Signer makes tokens. It may be used by many goroutines.
type Signer struct {
	secrets

	cfg Config
}

// NewSigner makes a signer. cfg.Lifetime is required.
func NewSigner(cfg Config) (*Signer, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	if cfg.Lifetime <= 0 {
		return nil, fmt.Errorf("%w: a lifetime is required", ErrInvalidConfig)
	}
	s := &Signer{cfg: cfg}
	return s, s.SetSecrets(cfg.Secrets)
}

// Sign makes a token for a subject and the audience of the configuration.
func (s *Signer) Sign(subject string) (string, error) { return s.SignFor(subject, s.cfg.Audience) }

// SignFor makes a token for a subject and an audience: only its verifiers accept the token.
func (s *Signer) SignFor(subject, audience string) (string, error) {
	now := s.cfg.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Issuer: s.cfg.Issuer, Audience: jwt.ClaimStrings{audience}, Subject: subject,
		IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(s.cfg.Lifetime)),
	}).SignedString(s.get()[0])
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return token, nil
}
