package signing

import (
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/directory"
)

const (
	// keyLifetime is the time from the creation of a key to the expiry of its last token.
	keyLifetime = 48 * time.Hour
	// keyInterval is the time between the creation of two keys.
	keyInterval = 24 * time.Hour
	// keyLead is the time between the publication of a key and its first signature.
	keyLead = 10 * time.Minute
	// keyRest is the remaining lifetime that a key needs to sign. It is longer than a token's lifetime.
	keyRest = 2 * access.TokenLifetime
)

// Key signs access tokens.
type Key struct {
	ID       string
	Public   ed25519.PublicKey
	Private  ed25519.PrivateKey // nil if the vault cannot open it
	MadeAt   time.Time
	NotAfter time.Time
}

// canSign reports whether the key may sign at a time.
func (k Key) canSign(now time.Time) bool {
	return k.Private != nil && now.Before(k.NotAfter.Add(-keyRest))
}

// Entry publishes the public key, or its removal.
func (k Key) Entry(removed bool) directory.Entry {
	return directory.Entry{Kind: "key", Key: k.ID, Data: events.DirectoryKey{
		KeyID: k.ID, Algorithm: events.KeyAlgorithmEdDSA, PublicKey: base64.RawURLEncoding.EncodeToString(k.Public),
		NotBefore: k.MadeAt.UTC(), NotAfter: k.NotAfter.UTC(), Deleted: removed,
	}}
}

// Plan is a rotation of the keys.
type Plan struct {
	// Create reports that a new key is due.
	Create bool
	// Expired are the keys to remove.
	Expired []Key
}

// NewPlan plans the rotation that is due at a time.
func NewPlan(now time.Time, keys []Key) Plan {
	p := Plan{Create: true}
	for _, k := range keys {
		if !now.Before(k.NotAfter) {
			p.Expired = append(p.Expired, k)
			continue
		}
		if k.canSign(now) && now.Before(k.MadeAt.Add(keyInterval)) {
			p.Create = false
		}
	}
	return p
}

// Current returns the key to sign with: the newest one that all services know, or else the oldest. It
// returns false without a key.
func Current(now time.Time, keys []Key) (Key, bool) {
	able := slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return !k.canSign(now) })
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

// End returns the expiry of a key created at a time.
func End(made time.Time) time.Time { return made.Add(keyLifetime) }
