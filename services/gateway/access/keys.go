package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Key is an SSH key that a person has registered.
type Key struct {
	UserID int64
	// ExpiresAt is when it becomes invalid; zero for never.
	ExpiresAt time.Time
}

// ErrUnknownKey is returned for a key that nobody has registered, or that has expired.
var ErrUnknownKey = errors.New("nobody has registered this key, or it has expired: " +
	"register one with lockstep ssh-key add")

// Keys are the SSH keys of people by their fingerprints. It is safe for concurrent use. Create it with NewKeys.
type Keys struct {
	mu      sync.Mutex
	keys    map[string]Key
	changed chan struct{} // closed when a key changes
}

// NewKeys returns an empty table.
func NewKeys() *Keys { return &Keys{keys: map[string]Key{}, changed: make(chan struct{})} }

// Fingerprint is the SHA-256 of a key in SSH's wire format, in hexadecimal digits.
func Fingerprint(key ssh.PublicKey) string {
	hash := sha256.Sum256(key.Marshal())
	return hex.EncodeToString(hash[:])
}

// Set adds or replaces a key.
func (k *Keys) Set(fingerprint string, key Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[fingerprint] = key
	k.announce()
}

// Remove removes a key.
func (k *Keys) Remove(fingerprint string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, fingerprint)
	k.announce()
}

func (k *Keys) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// Find returns a key that is valid now.
func (k *Keys) Find(fingerprint string, now time.Time) (Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, known := k.keys[fingerprint]
	if !known || !key.ExpiresAt.IsZero() && !now.Before(key.ExpiresAt) {
		return Key{}, ErrUnknownKey
	}
	return key, nil
}

// Changed returns a channel that is closed by the next change. Get it before Find.
func (k *Keys) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}
