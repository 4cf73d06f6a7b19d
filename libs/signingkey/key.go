package signingkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Key signs tokens.
type Key struct {
	ID     string
	Public ed25519.PublicKey
	// Private is nil if the seal of the key cannot be opened.
	Private  ed25519.PrivateKey
	MadeAt   time.Time
	NotAfter time.Time
}

// Schedule has the times of a rotation.
type Schedule struct {
	// Interval between the creation of two keys.
	Interval time.Duration
	// Lead is the time between the publication of a key and its first signature.
	Lead time.Duration
	// Lifetime is the time from the creation of a key to the expiry of its last token.
	Lifetime time.Duration
	// Rest is the remaining lifetime that a key needs to sign: at least the lifetime of a token.
	Rest time.Duration
}

// New creates a key.
func (s Schedule) New(now time.Time) (Key, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make a signing key: %w", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Key{}, fmt.Errorf("make the id of a signing key: %w", err)
	}
	made := now.UTC().Truncate(time.Second)
	return Key{ID: id.String(), Public: public, Private: private, MadeAt: made, NotAfter: made.Add(s.Lifetime)}, nil
}

// canSign reports whether the key may sign at a time.
func (s Schedule) canSign(k Key, now time.Time) bool {
	return k.Private != nil && now.Before(k.NotAfter.Add(-s.Rest))
}

// Plan is a rotation of the keys.
type Plan struct {
	// Create reports that a new key is due.
	Create bool
	// Expired are the keys to remove.
	Expired []Key
}

// Empty reports that nothing is due.
func (p Plan) Empty() bool { return !p.Create && len(p.Expired) == 0 }

// Plan plans the rotation that is due at a time.
func (s Schedule) Plan(now time.Time, keys []Key) Plan {
	p := Plan{Create: true}
	for _, k := range keys {
		if !now.Before(k.NotAfter) {
			p.Expired = append(p.Expired, k)
			continue
		}
		if s.canSign(k, now) && now.Before(k.MadeAt.Add(s.Interval)) {
			p.Create = false
		}
	}
	return p
}

// Current returns the key to sign with: the newest one that all verifiers know, or else the oldest. It returns false
// without a key.
func (s Schedule) Current(now time.Time, keys []Key) (Key, bool) {
	able := slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return !s.canSign(k, now) })
	if len(able) == 0 {
		return Key{}, false
	}
	slices.SortFunc(able, func(a, b Key) int { return a.MadeAt.Compare(b.MadeAt) })
	current := able[0]
	for _, k := range able {
		if !now.Before(k.MadeAt.Add(s.Lead)) {
			current = k
		}
	}
	return current, true
}
