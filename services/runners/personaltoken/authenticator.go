package personaltoken

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// maxExchanges is the maximum number of concurrent exchanges of tokens that were not valid before, and
	// maxWaitingExchanges of those that wait.
	maxExchanges        = 4
	maxWaitingExchanges = 64
	// maxTokens limits the memory. A full set loses the expired tokens first.
	maxTokens = 10_000
	// exchangeTimeout is the maximum time of an exchange, with the wait for another one.
	exchangeTimeout = 10 * time.Second
)

// Exchanger exchanges a personal access token for an access token of this service. Fault unauthenticated for a token
// that is not valid.
type Exchanger interface {
	Exchange(ctx context.Context, personal string) (accessToken string, err error)
}

// Verifier verifies access tokens. [access.Verifier] implements it.
type Verifier interface {
	Verify(token string) (access.Caller, error)
}

// Config of an authenticator. All fields but Now are required.
type Config struct {
	Exchanger Exchanger
	Verifier  Verifier
	// Users are those of the directory.
	Users access.Users
	// Now defaults to [time.Now].
	Now func() time.Time
}

// Authenticator finds the users of personal access tokens. It is safe for concurrent use.
type Authenticator struct {
	cfg       Config
	exchanges singleflight.Group
	slots     chan struct{}

	mu      sync.Mutex
	waiting int
	// tokens were valid at their last exchange. Expired ones stay: they do not wait for a slot.
	tokens map[natsauth.TokenHash]access.Caller
}

// New returns an authenticator that remembers nothing.
func New(cfg Config) *Authenticator {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Authenticator{
		cfg: cfg, slots: make(chan struct{}, maxExchanges), tokens: map[natsauth.TokenHash]access.Caller{},
	}
}

// Caller returns the user of the token. Faults: unauthenticated for a token that is not valid, permission_denied for a
// blocked user, resource_exhausted if too many unknown tokens are exchanged at once, unavailable without the state
// service.
func (a *Authenticator) Caller(ctx context.Context, token string) (access.Caller, error) {
	hash, err := natsauth.HashToken(natsauth.TokenPersonal, token)
	if err != nil {
		return access.Caller{}, fault.Wrap(err, errcode.Unauthenticated, "the personal access token is invalid: %v", err)
	}
	caller, valid := a.known(hash)
	if !valid {
		if caller, err = a.exchange(ctx, hash, token); err != nil {
			return access.Caller{}, err
		}
	}
	return access.CurrentCaller(a.cfg.Users, caller)
}

// known returns the user of the last exchange, and whether its result is still valid.
func (a *Authenticator) known(hash natsauth.TokenHash) (access.Caller, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	caller, found := a.tokens[hash]
	return caller, found && a.cfg.Now().Before(caller.ExpiresAt)
}

// exchange exchanges the token. Concurrent calls share one exchange, which goes on when a call ends.
func (a *Authenticator) exchange(ctx context.Context, hash natsauth.TokenHash, token string) (access.Caller, error) {
	shared := a.exchanges.DoChan(string(hash[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
		defer cancel()
		return a.exchangeNow(ctx, hash, token)
	})
	select {
	case result := <-shared:
		caller, _ := result.Val.(access.Caller) // the zero caller with an error
		return caller, result.Err
	case <-ctx.Done():
		return access.Caller{}, ctx.Err()
	}
}

func (a *Authenticator) exchangeNow(ctx context.Context, hash natsauth.TokenHash, token string) (access.Caller, error) {
	// An exchange that other calls shared may have ended just now.
	if caller, valid := a.known(hash); valid {
		return caller, nil
	}
	release, err := a.begin(ctx, hash)
	if err != nil {
		return access.Caller{}, err
	}
	defer release()
	signed, err := a.cfg.Exchanger.Exchange(ctx, token)
	if err != nil {
		a.forgetInvalid(hash, err)
		return access.Caller{}, err
	}
	caller, err := a.cfg.Verifier.Verify(signed)
	if err != nil {
		a.forgetInvalid(hash, err)
		return access.Caller{}, err
	}
	a.remember(hash, caller)
	return caller, nil
}

// begin waits for a slot, unless the token was valid before.
func (a *Authenticator) begin(ctx context.Context, hash natsauth.TokenHash) (release func(), err error) {
	a.mu.Lock()
	if _, found := a.tokens[hash]; found {
		a.mu.Unlock()
		return func() {}, nil
	}
	if a.waiting >= maxWaitingExchanges {
		a.mu.Unlock()
		return nil, fault.New(errcode.ResourceExhausted, "too many new personal access tokens are being checked: try again")
	}
	a.waiting++
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.waiting--
	}()
	select {
	case a.slots <- struct{}{}:
		return func() { <-a.slots }, nil
	case <-ctx.Done():
		return nil, fault.New(errcode.Unavailable, "the personal access token was not checked in time: try again")
	}
}

func (a *Authenticator) remember(hash natsauth.TokenHash, caller access.Caller) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.tokens[hash]; !known && len(a.tokens) >= maxTokens {
		a.makeRoom()
	}
	a.tokens[hash] = caller
}

// makeRoom forgets the expired tokens, or all if there are none. The mutex is held.
func (a *Authenticator) makeRoom() {
	now := a.cfg.Now()
	for hash, caller := range a.tokens {
		if !now.Before(caller.ExpiresAt) {
			delete(a.tokens, hash)
		}
	}
	if len(a.tokens) >= maxTokens {
		clear(a.tokens)
	}
}

// forgetInvalid forgets a token that is not valid any more. A state service that is down is no reason.
func (a *Authenticator) forgetInvalid(hash natsauth.TokenHash, err error) {
	if !fault.Is(err, errcode.Unauthenticated) && !fault.Is(err, errcode.PermissionDenied) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tokens, hash)
}
