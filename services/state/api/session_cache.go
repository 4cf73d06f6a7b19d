package api

import (
	"sync"
	"time"

	"lockstep.internal/libs/natsauth"
)

const (
	// sessionTTL is the lifetime of a cached session. A revocation takes effect within it even if its notification is
	// late.
	sessionTTL = time.Second
	// maxSessions limits the memory. A full cache is cleared.
	maxSessions = 10_000
)

// sessionCache caches the sessions of tokens, so that a busy caller costs one query per second. It is safe for
// concurrent use.
type sessionCache struct {
	// changed reports whether the access of users changed since the previous call.
	changed func() bool

	mu sync.Mutex
	// generation counts invalidations.
	generation int
	sessions   map[natsauth.TokenHash]cachedSession
}

type cachedSession struct {
	session session
	until   time.Time
}

func newSessionCache(changed func() bool) *sessionCache {
	return &sessionCache{changed: changed, sessions: map[natsauth.TokenHash]cachedSession{}}
}

// find returns the session of a token, and the generation to pass to add. It does not return one from before a change
// of access that changed reports.
func (c *sessionCache) find(hash natsauth.TokenHash, now time.Time) (session, bool, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed() {
		c.clear()
	}
	s, known := c.sessions[hash]
	return s.session, known && now.Before(s.until), c.generation
}

// add caches a session until now + sessionTTL, at most until it expires. It does nothing if invalidate was called after
// find returned the generation.
func (c *sessionCache) add(hash natsauth.TokenHash, s session, now time.Time, generation int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != generation {
		return
	}
	if len(c.sessions) >= maxSessions {
		clear(c.sessions)
	}
	until := now.Add(sessionTTL)
	if expires := s.token.ExpiresAt; !expires.IsZero() && expires.Before(until) {
		until = expires
	}
	c.sessions[hash] = cachedSession{session: s, until: until}
}

// invalidate clears the cache after a revocation or a block.
func (c *sessionCache) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
}

// clear is called with the mutex held.
func (c *sessionCache) clear() {
	c.generation++
	clear(c.sessions)
}
