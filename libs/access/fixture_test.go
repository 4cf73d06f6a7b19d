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
	timeout  = time.Minute
)

// fakeDirectory is a directory that a test writes.
type fakeDirectory struct {
	mu      sync.Mutex
	ready   bool
	users   map[int64]directory.User
	keys    map[string]directory.Key
	changed chan struct{}
}

func (b *fakeDirectory) Ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

func (b *fakeDirectory) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *fakeDirectory) User(id int64) (directory.User, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u, known := b.users[id]
	return u, known
}

func (b *fakeDirectory) Key(id string) (directory.Key, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, known := b.keys[id]
	return k, known
}

func (b *fakeDirectory) write(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	close(b.changed)
	b.changed = make(chan struct{})
}

// fixture is a verifier with a fixed clock and a signing key.
type fixture struct {
	now      time.Time
	book     *fakeDirectory
	private  ed25519.PrivateKey
	verifier *access.Verifier
}

func newFixture(t testing.TB, adjust ...func(*access.Config)) *fixture {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	b := &fixture{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), private: private}
	b.book = &fakeDirectory{
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

// grant returns a valid grant for user 5.
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
