package connectapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/state/domain"
)

func TestATokenIsRememberedForASecond(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ada := session{user: domain.User{ID: 7, Username: "ada"}}
	hash := natsauth.TokenHash{1}
	type lookup struct {
		at    time.Duration
		found bool
	}
	for name, test := range map[string]struct {
		between func(r *recent)
		lookups []lookup
	}{
		"known for a second": {
			lookups: []lookup{{at: 0, found: true}, {at: recently - 1, found: true}, {at: recently}},
		},
		"revoked here": {
			between: func(r *recent) { r.changed() },
			lookups: []lookup{{at: 0}},
		},
		"forgotten for want of room": {
			between: func(r *recent) {
				for i := range maxRecent {
					r.remember(natsauth.TokenHash{2, byte(i), byte(i >> 8)}, session{}, now, r.changes)
				}
			},
			lookups: []lookup{{at: 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecent()
			_, found, changes := r.find(hash, now)
			require.False(t, found)
			r.remember(hash, ada, now, changes)
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

func TestATokenThatExpiresIsNotRememberedForLonger(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	r := newRecent()
	r.remember(natsauth.TokenHash{1}, session{expires: now.Add(time.Millisecond)}, now, 0)
	_, found, _ := r.find(natsauth.TokenHash{1}, now)
	require.True(t, found)
	_, found, _ = r.find(natsauth.TokenHash{1}, now.Add(time.Millisecond))
	require.False(t, found)
}

func TestATokenThatIsRevokedWhileItIsLookedForIsNotRemembered(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	r := newRecent()
	_, _, changes := r.find(natsauth.TokenHash{1}, now)
	r.changed()
	r.remember(natsauth.TokenHash{1}, session{user: domain.User{ID: 7}}, now, changes)
	_, found, _ := r.find(natsauth.TokenHash{1}, now)
	require.False(t, found)
}
