package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/state/directory"
)

func TestSessionCacheKeepsSessionsForASecond(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ada := session{user: directory.User{ID: 7, Username: "ada"}}
	hash := natsauth.TokenHash{1}
	type lookup struct {
		at    time.Duration
		found bool
	}
	for name, test := range map[string]struct {
		between func(r *sessionCache)
		lookups []lookup
	}{
		"known for a second": {
			lookups: []lookup{{at: 0, found: true}, {at: sessionTTL - 1, found: true}, {at: sessionTTL}},
		},
		"revoked here": {
			between: func(r *sessionCache) { r.invalidate() },
			lookups: []lookup{{at: 0}},
		},
		"full": {
			between: func(r *sessionCache) {
				for i := range maxSessions {
					r.add(natsauth.TokenHash{2, byte(i), byte(i >> 8)}, session{}, now, r.generation)
				}
			},
			lookups: []lookup{{at: 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSessionCache(func() bool { return false })
			_, found, generation := r.find(hash, now)
			require.False(t, found)
			r.add(hash, ada, now, generation)
			if test.between != nil {
				test.between(r)
			}
			for _, l := range test.lookups {
				u, found, _ := r.find(hash, now.Add(l.at))
				require.Equal(t, l.found, found, l.at)
				if found {
					require.Equal(t, ada, u)
				}
			}
		})
	}
}

func TestSessionCacheDropsExpiredTokens(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	r := newSessionCache(func() bool { return false })
	r.add(natsauth.TokenHash{1}, session{token: directory.Token{ExpiresAt: now.Add(time.Millisecond)}}, now, 0)
	_, found, _ := r.find(natsauth.TokenHash{1}, now)
	require.True(t, found)
	_, found, _ = r.find(natsauth.TokenHash{1}, now.Add(time.Millisecond))
	require.False(t, found)
}

func TestSessionCacheDropsTokensRevokedDuringTheQuery(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	r := newSessionCache(func() bool { return false })
	_, _, generation := r.find(natsauth.TokenHash{1}, now)
	r.invalidate()
	r.add(natsauth.TokenHash{1}, session{user: directory.User{ID: 7}}, now, generation)
	_, found, _ := r.find(natsauth.TokenHash{1}, now)
	require.False(t, found)
}

// A request that begins after the notification of a revocation gets no session from before it.
func TestSessionCacheForgetsSessionsWhenAccessChanges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	changed := false
	c := newSessionCache(func() bool { was := changed; changed = false; return was })
	hash := natsauth.TokenHash{1}
	_, _, generation := c.find(hash, now)
	c.add(hash, session{}, now, generation)
	_, found, _ := c.find(hash, now)
	require.True(t, found)
	changed = true
	_, found, _ = c.find(hash, now)
	require.False(t, found)
	c.add(hash, session{}, now, generation)
	_, found, _ = c.find(hash, now)
	require.False(t, found, "it was read before the change")
}
