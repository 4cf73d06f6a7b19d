package signing

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

// Store stores the keys.
type Store interface {
	// Rotate carries out the plan of [Schedule] once among all replicas, and returns the current keys.
	Rotate(ctx context.Context) ([]signingkey.Key, error)
}

// Keyring signs access tokens. Set its fields before the first use. It is safe for concurrent use.
type Keyring struct {
	Store  Store
	Cell   topology.Cell
	Logger *slog.Logger
	Now    func() time.Time
	// Interval between two rotations. Defaults to a minute.
	Interval time.Duration

	mu   sync.RWMutex
	keys []signingkey.Key
}

const defaultInterval = time.Minute

// Run rotates the keys until ctx is done. It calls ready with the first key, and fails without any key.
func (k *Keyring) Run(ctx context.Context, ready func()) error {
	interval := k.Interval
	if interval == 0 {
		interval = defaultInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		switch err := k.rotate(ctx); {
		case err == nil:
			ready()
		case ctx.Err() != nil:
			return nil
		case !k.canSign():
			return fmt.Errorf("signing keys: %w", err)
		default:
			k.Logger.WarnContext(ctx, "rotate the signing keys failed; using the known keys", logkey.Error(err))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *Keyring) rotate(ctx context.Context) error {
	keys, err := k.Store.Rotate(ctx)
	if err != nil {
		return fmt.Errorf("rotate the signing keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = keys
	return nil
}

func (k *Keyring) canSign() bool {
	_, found := k.current()
	return found
}

func (k *Keyring) current() (signingkey.Key, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return Schedule.Current(k.Now(), k.keys)
}

// Issue exchanges a personal access token of the user: it returns an access token and its expiry, which is not after
// the expiry of the personal access token. Errors are faults.
func (k *Keyring) Issue(
	user directory.User, personal directory.Token, audience []string,
) (string, time.Time, error) {
	key, found := k.current()
	if !found {
		return "", time.Time{}, fault.New(errcode.Unavailable, "no key can sign access tokens now: try again")
	}
	now := k.Now().UTC().Truncate(time.Second)
	expires := now.Add(access.TokenLifetime)
	if until := personal.ExpiresAt; !until.IsZero() && until.Before(expires) {
		expires = until.UTC().Truncate(time.Second)
	}
	if !expires.After(now) {
		return "", time.Time{}, fault.New(errcode.Unauthenticated, "the personal access token has expired: create a new one")
	}
	token, err := access.Sign(key.Private, key.ID, access.Grant{
		Issuer: access.Issuer(k.Cell), Audience: audience, UserID: user.ID, Admin: user.Admin, IssuedAt: now,
		ExpiresAt: expires, TokenID: personal.ID, TokenExpiresAt: personal.ExpiresAt, Scope: personal.Scope,
	})
	if err != nil {
		return "", time.Time{}, fault.Wrap(err, errcode.Internal, "make an access token")
	}
	return token, expires, nil
}
