package forward

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/policy"
)

const (
	// cacheDuration is how long a verified token is cached, unless it expires or the directory changes before.
	cacheDuration = 10 * time.Second
	// maxCached tokens.
	maxCached = 10_000
)

// Headers with a caller's token. The second one is for requests that carry an Authorization for the target.
const (
	headerAuthorization         = "Authorization"
	headerLockstepAuthorization = "Lockstep-Authorization"
)

// Authenticator identifies callers by their tokens: users by access tokens, services by JWTs that are signed with a
// shared secret. It may be used by many goroutines.
type Authenticator struct {
	users    *access.Verifier
	services *auth.Verifier // nil without services
	changed  func() <-chan struct{}
	now      func() time.Time

	mu       sync.Mutex
	cache    map[[sha256.Size]byte]cachedCaller
	outdated <-chan struct{} // closed when the cache is outdated
}

type cachedCaller struct {
	policy.Caller

	until time.Time
}

// NewAuthenticator makes an authenticator. services may be nil. changed returns a channel that is closed when the
// directory of users changes.
func NewAuthenticator(
	users *access.Verifier, services *auth.Verifier, changed func() <-chan struct{}, now func() time.Time,
) *Authenticator {
	return &Authenticator{
		users: users, services: services, changed: changed, now: now,
		cache: map[[sha256.Size]byte]cachedCaller{}, outdated: changed(),
	}
}

// Caller identifies the caller of a request, and removes the token from its header. Faults: unauthenticated,
// permission_denied for a blocked user, unavailable before the directory is read.
func (a *Authenticator) Caller(header http.Header) (policy.Caller, error) {
	name := headerLockstepAuthorization
	if len(header[headerLockstepAuthorization]) == 0 {
		name = headerAuthorization
	}
	values := header[name]
	delete(header, name)
	if len(values) != 1 {
		return policy.Caller{}, fault.New(errcode.Unauthenticated, "send one access token in the header %s: Bearer <token>",
			headerAuthorization)
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return policy.Caller{}, fault.New(errcode.Unauthenticated, "header %s must have the form: Bearer <token>", name)
	}
	key, now := sha256.Sum256([]byte(token)), a.now()
	cached, outdated, found := a.cached(key)
	if found && now.Before(cached.until) {
		return cached.Caller, nil
	}
	caller, expires, err := a.verify(token)
	if err != nil {
		return policy.Caller{}, err
	}
	until := now.Add(cacheDuration)
	if expires.Before(until) {
		until = expires
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cache) >= maxCached {
		clear(a.cache)
	}
	if a.outdated == outdated { // the directory has not changed since
		a.cache[key] = cachedCaller{caller, until}
	}
	return caller, nil
}

// cached returns the cached caller of a token. It clears an outdated cache first.
func (a *Authenticator) cached(key [sha256.Size]byte) (cached cachedCaller, outdated <-chan struct{}, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.outdated:
		clear(a.cache)
		a.outdated = a.changed()
	default:
	}
	cached, found = a.cache[key]
	return cached, a.outdated, found
}

// SetServiceSecrets replaces the secrets that services sign their tokens with. Call [Handler.Reauthorize] afterwards.
func (a *Authenticator) SetServiceSecrets(secrets [][]byte) error {
	if err := a.services.SetSecrets(secrets); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.cache)
	return nil
}

// checkSecret returns the fault unauthenticated if the secret of a service's token is no longer accepted.
func (a *Authenticator) checkSecret(service policy.Caller) error {
	if service.Secret == (auth.SecretID{}) || a.services.Accepts(service.Secret) {
		return nil
	}
	return fault.New(errcode.Unauthenticated, "the secret that signed the token is no longer accepted")
}

func (a *Authenticator) verify(token string) (policy.Caller, time.Time, error) {
	if a.services != nil && isSymmetric(token) {
		c, err := a.services.Verify(token)
		return policy.Caller{
			Subject: c.Subject, Scope: access.ScopeAdmin, Secret: c.Secret, TokenExpiresAt: c.ExpiresAt.Add(auth.MaxSkew),
		}, c.ExpiresAt, err
	}
	c, err := a.users.Verify(token)
	return policy.Caller{
		UserID: c.UserID, Admin: c.Admin, Scope: c.Scope, TokenID: c.TokenID, TokenExpiresAt: c.TokenExpiresAt,
	}, c.ExpiresAt, err
}

// isSymmetric reports whether the token's header names an HMAC algorithm. It only selects the verifier,
// which checks the algorithm itself.
func isSymmetric(token string) bool {
	head, _, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(head)
	var header struct {
		Algorithm string `json:"alg"`
	}
	return err == nil && json.Unmarshal(raw, &header) == nil && strings.HasPrefix(header.Algorithm, "HS")
}
