package connectapi

import (
	"sync"
	"time"

	"lockstep.internal/libs/natsauth"
)

const (
	// recently is for how long a token that was found is not looked for again, and so how long it may take until a revocation by another replica counts here.
	recently = time.Second
	// maxRecent bounds the memory; beyond it all are looked for again.
	maxRecent = 10_000
)

// recent remembers whose the tokens were that were found a moment ago: who sends one request after the other waits for the database once a second, not each time.
type recent struct {
	mu       sync.Mutex
	changes  int
	sessions map[natsauth.TokenHash]seen
}

type seen struct {
	session session
	until   time.Time
}

func newRecent() *recent { return &recent{sessions: map[natsauth.TokenHash]seen{}} }

// find returns the session of a token, and otherwise what to remember it with once it is found.
func (r *recent) find(hash natsauth.TokenHash, now time.Time) (session, bool, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, there := r.sessions[hash]
	return s.session, there && now.Before(s.until), r.changes
}

// remember keeps what was found, unless something changed since it was looked for at the time now.
func (r *recent) remember(hash natsauth.TokenHash, s session, now time.Time, changes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes != changes {
		return
	}
	if len(r.sessions) >= maxRecent {
		clear(r.sessions)
	}
	until := now.Add(recently)
	if !s.expires.IsZero() && s.expires.Before(until) {
		until = s.expires
	}
	r.sessions[hash] = seen{session: s, until: until}
}

// changed forgets everything: a token was revoked, or a user blocked.
func (r *recent) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes++
	clear(r.sessions)
}
