package signing

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Store stores the keys.
type Store interface {
	// Rotate carries out the plan of [Schedule] once among all replicas, and returns the current keys.
	Rotate(ctx context.Context) ([]signingkey.Key, error)
}

// Keyring signs and verifies job tokens. Set its fields before the first use. It is safe for concurrent use.
type Keyring struct {
	Store  Store
	Cell   topology.Cell
	Logger *slog.Logger
	Now    func() time.Time
	// Registry gives tokens the rights on the container registry.
	Registry bool
	// Interval between two rotations. Defaults to a minute.
	Interval time.Duration

	// refreshing is held while the keys are read because of an unknown one.
	refreshing sync.Mutex
	refreshed  time.Time // guarded by refreshing

	mu      sync.RWMutex
	keys    []signingkey.Key
	changed chan struct{} // closed by the next change of the keys; nil until somebody asks
}

const (
	defaultInterval = time.Minute
	// refreshInterval bounds how often tokens of unknown keys cause a query.
	refreshInterval = time.Second
)

// Run rotates the keys until ctx is done. It calls ready with the first key, and fails without any key.
func (k *Keyring) Run(ctx context.Context, ready func()) error {
	ticker := time.NewTicker(cmp.Or(k.Interval, defaultInterval))
	defer ticker.Stop()
	for {
		switch err := k.rotate(ctx); {
		case err == nil:
			ready()
		case ctx.Err() != nil:
			return nil
		default:
			if id, _ := k.Current(); id == "" {
				return fmt.Errorf("signing keys: %w", err)
			}
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
	same := slices.EqualFunc(k.keys, keys, func(a, b signingkey.Key) bool { return a.ID == b.ID })
	k.keys = keys
	if !same && k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
	return nil
}

// Refresh reads the keys again, at most once a second: a token may be signed with a key that another replica has just
// created.
func (k *Keyring) Refresh(ctx context.Context) error {
	k.refreshing.Lock()
	defer k.refreshing.Unlock()
	now := k.Now()
	if now.Sub(k.refreshed).Abs() < refreshInterval {
		return nil
	}
	if err := k.rotate(ctx); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "the keys of job tokens cannot be read now: try again")
	}
	k.refreshed = now
	return nil
}

// Changed returns a channel that is closed by the next change of the keys.
func (k *Keyring) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

// Keys returns the public keys, the newest first.
func (k *Keyring) Keys() jobtoken.KeySet {
	k.mu.RLock()
	defer k.mu.RUnlock()
	keys := slices.SortedFunc(slices.Values(k.keys), func(a, b signingkey.Key) int { return b.MadeAt.Compare(a.MadeAt) })
	set := make(jobtoken.KeySet, 0, len(keys))
	// There are more only after the key of the service was replaced several times.
	for _, key := range keys[:min(len(keys), jobtoken.MaxKeys)] {
		set = append(set, jobtoken.Key{ID: key.ID, Public: key.Public})
	}
	return set
}

// Find returns the public key of a token. It is a [jobtoken.Keys].
func (k *Keyring) Find(cell topology.Cell, id string) (ed25519.PublicKey, bool) {
	if cell != k.Cell {
		return nil, false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, key := range k.keys {
		if key.ID == id {
			return key.Public, true
		}
	}
	return nil, false
}

// Current returns the key that signs now; its id is empty if there is none.
func (k *Keyring) Current() (id string, key ed25519.PrivateKey) {
	id, key, _ = k.current() // without a key, both are empty
	return id, key
}

func (k *Keyring) current() (string, ed25519.PrivateKey, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	key, found := Schedule.Current(k.Now(), k.keys)
	if !found {
		return "", nil, fault.New(errcode.Unavailable, "no key can sign job tokens now: try again")
	}
	return key.ID, key.Private, nil
}
