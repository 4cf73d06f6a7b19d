package connectapi

import (
	"sync"
	"time"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/state/domain"
)

const (
	// recently is for how long a token that was found is not looked for again, and so how long it may take until a revocation by another replica counts here.
	recently = time.Second
	// maxRecent bounds the memory; beyond it all are looked for again.
	maxRecent = 10_000
)

// recent remembers whose the tokens were that were found a moment ago: who sends one request after the other waits for the database once a second, not each time.
type recent struct {
	mu      sync.Mutex
	changes int
	users   map[natsauth.TokenHash]seen
}

type seen struct {
	user  domain.User
	until time.Time
}

func newRecent() *recent { return &recent{users: map[natsauth.TokenHash]seen{}} }

// find returns the user of a token, and otherwise what to remember it with once it is found.
func (r *recent) find(hash natsauth.TokenHash, now time.Time) (domain.User, bool, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, there := r.users[hash]
	return s.user, there && now.Before(s.until), r.changes
}

// remember keeps a user who was found, unless something changed since it was looked for at the time now.
func (r *recent) remember(hash natsauth.TokenHash, u domain.User, now time.Time, changes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes != changes {
		return
	}
	if len(r.users) >= maxRecent {
		clear(r.users)
	}
	r.users[hash] = seen{user: u, until: now.Add(recently)}
}

// changed forgets everything: a token was revoked, or a user blocked.
func (r *recent) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes++
	clear(r.users)
}
