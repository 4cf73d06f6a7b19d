package signing

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Store keeps the keys.
type Store interface {
	// Rotate does what [NewPlan] says, once among all replicas, and returns the keys of then.
	Rotate(ctx context.Context) ([]Key, error)
}

// Keyring signs access tokens. Its fields are set before it is used; Keyring is safe for concurrent use.
type Keyring struct {
	Store  Store
	Cell   topology.Cell
	Logger *slog.Logger
	Now    func() time.Time
	// Interval is how often keys are looked after. Defaults to a minute.
	Interval time.Duration

	mu   sync.RWMutex
	keys []Key
}

const defaultInterval = time.Minute

// Run looks after the keys until ctx is done, and calls ready once there are some. It returns an error while there are none.
func (k *Keyring) Run(ctx context.Context, ready func()) error {
	interval := k.Interval
	if interval == 0 {
		interval = defaultInterval
	}
	turn := time.NewTicker(interval)
	defer turn.Stop()
	for {
		switch err := k.look(ctx); {
		case err == nil:
			ready()
		case ctx.Err() != nil:
			return nil
		case !k.able():
			return fmt.Errorf("signing keys: %w", err)
		default:
			k.Logger.WarnContext(ctx, "the signing keys could not be looked after, those known are used on", slog.Any("error", err))
		}
		select {
		case <-turn.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *Keyring) look(ctx context.Context) error {
	keys, err := k.Store.Rotate(ctx)
	if err != nil {
		return fmt.Errorf("look after the signing keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = keys
	return nil
}

func (k *Keyring) able() bool {
	_, able := k.current()
	return able
}

func (k *Keyring) current() (Key, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return Current(k.Now(), k.keys)
}

// Issue makes an access token for the user, which ends no later than until where that is not zero, and says when it does. Its errors are faults.
func (k *Keyring) Issue(userID int64, admin bool, audience []string, until time.Time) (string, time.Time, error) {
	key, able := k.current()
	if !able {
		return "", time.Time{}, fault.New(errcode.Unavailable, "there is no key to sign access tokens with at the moment: try again")
	}
	now := k.Now().UTC().Truncate(time.Second)
	expires := now.Add(access.TokenLifetime)
	if !until.IsZero() && until.Before(expires) {
		expires = until.UTC().Truncate(time.Second)
	}
	if !expires.After(now) {
		return "", time.Time{}, fault.New(errcode.Unauthenticated, "the personal access token is over: make a new one")
	}
	token, err := access.Sign(key.Private, key.ID, access.Grant{
		Issuer: access.Issuer(k.Cell), Audience: audience, UserID: userID, Admin: admin, IssuedAt: now, ExpiresAt: expires,
	})
	if err != nil {
		return "", time.Time{}, fault.Wrap(err, errcode.Internal, "make an access token")
	}
	return token, expires, nil
}
