package signing

import (
	"crypto/ed25519"
	"slices"
	"time"

	"lockstep.internal/libs/access"
)

const (
	// keyLifetime is from the making of a key to the end of the last token that it signed.
	keyLifetime = 48 * time.Hour
	// keyInterval is between the making of one key and of the next.
	keyInterval = 24 * time.Hour
	// keyLead is how long a new key is told before it signs.
	keyLead = 10 * time.Minute
	// keyRest is what must be left of a key's life for it to sign: more than a token lives.
	keyRest = 2 * access.TokenLifetime
)

// Key signs access tokens from when it was made until it is over.
type Key struct {
	ID       string
	Public   ed25519.PublicKey
	Private  ed25519.PrivateKey // nil where it could not be opened
	MadeAt   time.Time
	NotAfter time.Time
}

// signs says whether the key may sign at that time at all.
func (k Key) signs(now time.Time) bool {
	return k.Private != nil && now.Before(k.NotAfter.Add(-keyRest))
}

// Plan is what there is to do about the keys.
type Plan struct {
	// Make says that a new key is needed.
	Make bool
	// Over are the keys that no token can be of any more.
	Over []Key
}

// NewPlan says what there is to do at that time.
func NewPlan(now time.Time, keys []Key) Plan {
	p := Plan{Make: true}
	for _, k := range keys {
		if !now.Before(k.NotAfter) {
			p.Over = append(p.Over, k)
			continue
		}
		if k.signs(now) && now.Before(k.MadeAt.Add(keyInterval)) {
			p.Make = false
		}
	}
	return p
}

// Current is the key to sign with at that time: the newest that everybody has heard of, else the oldest. False: there is none.
func Current(now time.Time, keys []Key) (Key, bool) {
	able := slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return !k.signs(now) })
	if len(able) == 0 {
		return Key{}, false
	}
	slices.SortFunc(able, func(a, b Key) int { return a.MadeAt.Compare(b.MadeAt) })
	current := able[0]
	for _, k := range able {
		if !now.Before(k.MadeAt.Add(keyLead)) {
			current = k
		}
	}
	return current, true
}

// End of a key that is made at that time.
func End(made time.Time) time.Time { return made.Add(keyLifetime) }
