package access_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/topology"
)

const (
	cell     = topology.Cell("local")
	audience = "deploys"
	patience = time.Minute
)

// book is a directory that a test writes.
type book struct {
	mu      sync.Mutex
	ready   bool
	users   map[int64]directory.User
	keys    map[string]directory.Key
	changed chan struct{}
}

func (b *book) Ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

func (b *book) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *book) User(id int64) (directory.User, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u, known := b.users[id]
	return u, known
}

func (b *book) Key(id string) (directory.Key, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, known := b.keys[id]
	return k, known
}

func (b *book) write(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	close(b.changed)
	b.changed = make(chan struct{})
}

// fixture is a verifier at a time that stands still, and who signs for it.
type fixture struct {
	now      time.Time
	book     *book
	private  ed25519.PrivateKey
	verifier *access.Verifier
}

func newFixture(t testing.TB, adjust ...func(*access.Config)) *fixture {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	b := &fixture{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), private: private}
	b.book = &book{
		ready:   true,
		changed: make(chan struct{}),
		users:   map[int64]directory.User{5: {ID: 5}, 6: {ID: 6, Admin: true}, 7: {ID: 7, Blocked: true}},
		keys: map[string]directory.Key{
			"k": {ID: "k", Public: public, NotBefore: b.now.Add(-time.Hour), NotAfter: b.now.Add(time.Hour)},
		},
	}
	cfg := access.Config{Directory: b.book, Cell: cell, Audience: audience, Now: func() time.Time { return b.now }}
	for _, f := range adjust {
		f(&cfg)
	}
	b.verifier, err = access.NewVerifier(cfg)
	require.NoError(t, err)
	return b
}

// grant is what state makes for user 5 at this moment.
func (b *fixture) grant() access.Grant {
	return access.Grant{
		Issuer: access.Issuer(cell), Audience: []string{audience}, UserID: 5, IssuedAt: b.now,
		ExpiresAt: b.now.Add(access.TokenLifetime),
	}
}

func (b *fixture) sign(t testing.TB, change ...func(*access.Grant)) string {
	t.Helper()
	g := b.grant()
	for _, f := range change {
		f(&g)
	}
	token, err := access.Sign(b.private, "k", g)
	require.NoError(t, err)
	return token
}
