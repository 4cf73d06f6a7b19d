package proxy

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
	// rememberFor is how long a token that was accepted is accepted without another look, unless it ends before or the directory changes.
	rememberFor = 10 * time.Second
	// maxRemembered tokens.
	maxRemembered = 10_000
)

// Authenticator knows callers by their tokens: users by access tokens, services by those signed with the shared secret.
type Authenticator struct {
	users    *access.Verifier
	services *auth.Verifier
	changed  func() <-chan struct{}
	now      func() time.Time

	mu         sync.Mutex
	remembered map[[sha256.Size]byte]remembered
	until      <-chan struct{} // closed when nothing that is remembered counts any more
}

type remembered struct {
	policy.Caller

	until time.Time
}

// NewAuthenticator makes one. services may be nil: then there are none. changed returns a channel that is closed when the directory of users changes.
func NewAuthenticator(users *access.Verifier, services *auth.Verifier, changed func() <-chan struct{}, now func() time.Time) *Authenticator {
	return &Authenticator{users: users, services: services, changed: changed, now: now, remembered: map[[sha256.Size]byte]remembered{}, until: changed()}
}

// Headers by which a caller shows its token. The second one is for requests whose Authorization is for the target.
const (
	headerAuthorization = "Authorization"
	headerOwn           = "Lockstep-Authorization"
)

// Caller who sent a request. It takes the token out of it. Faults: unauthenticated, permission_denied for a user who is blocked, unavailable while the directory is not known.
func (a *Authenticator) Caller(header http.Header) (policy.Caller, error) {
	name := headerOwn
	if len(header[headerOwn]) == 0 {
		name = headerAuthorization
	}
	values := header[name]
	delete(header, name)
	if len(values) != 1 {
		return policy.Caller{}, fault.New(errcode.Unauthenticated, "send one access token for the relay, in the header %s: Bearer <token>", headerAuthorization)
	}
	return a.bearer(name, values[0])
}

// bearer is who shows a token by the value of a header.
func (a *Authenticator) bearer(name, value string) (policy.Caller, error) {
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return policy.Caller{}, fault.New(errcode.Unauthenticated, "the header %s is not of the form: Bearer <token>", name)
	}
	return a.verify(token)
}

func (a *Authenticator) verify(token string) (policy.Caller, error) {
	key, now := sha256.Sum256([]byte(token)), a.now()
	a.mu.Lock()
	select {
	case <-a.until:
		clear(a.remembered)
		a.until = a.changed()
	default:
	}
	known, found := a.remembered[key]
	until := a.until
	a.mu.Unlock()
	if found && now.Before(known.until) {
		return known.Caller, nil
	}
	caller, expires, err := a.look(token)
	if err != nil {
		return policy.Caller{}, err
	}
	end := now.Add(rememberFor)
	if expires.Before(end) {
		end = expires
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.remembered) >= maxRemembered {
		clear(a.remembered)
	}
	if a.until == until {
		a.remembered[key] = remembered{caller, end}
	}
	return caller, nil
}

// look at a token: whose it is, and until when.
func (a *Authenticator) look(token string) (policy.Caller, time.Time, error) {
	if a.services != nil && symmetric(token) {
		c, err := a.services.Verify(token)
		return policy.Caller{Subject: c.Subject}, c.ExpiresAt, err
	}
	c, err := a.users.Verify(token)
	return policy.Caller{UserID: c.UserID, Admin: c.Admin}, c.ExpiresAt, err
}

// symmetric says whether a token claims to be signed with a shared secret. Who verifies it believes nothing of that.
func symmetric(token string) bool {
	head, _, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(head)
	var said struct {
		Algorithm string `json:"alg"`
	}
	return err == nil && json.Unmarshal(raw, &said) == nil && strings.HasPrefix(said.Algorithm, "HS")
}
