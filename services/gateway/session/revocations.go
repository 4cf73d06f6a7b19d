package session

import (
	"context"
	"sync"
	"time"
)

// Revocations are the sessions that have ended before their time, and those that somebody uses. It is safe for
// concurrent use. Create it with NewRevocations.
type Revocations struct {
	now func() time.Time

	mu      sync.Mutex
	revoked map[string]time.Time // until when each would have been valid
	uses    map[string]*uses
}

// uses are the open requests of one session.
type uses struct {
	count  int
	ctx    context.Context //nolint:containedctx // it is that of the session, not of a call
	revoke context.CancelFunc
}

// NewRevocations returns an empty table.
func NewRevocations(now func() time.Time) *Revocations {
	return &Revocations{now: now, revoked: map[string]time.Time{}, uses: map[string]*uses{}}
}

// Add revokes a session, which would have been valid until then. What uses it ends.
func (r *Revocations) Add(id string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for other, end := range r.revoked {
		if now.After(end) {
			delete(r.revoked, other)
		}
	}
	if now.After(until) {
		return
	}
	r.revoked[id] = until
	if u, used := r.uses[id]; used {
		u.revoke()
		delete(r.uses, id)
	}
}

// Revoked reports whether a session has ended.
func (r *Revocations) Revoked(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, revoked := r.revoked[id]
	return revoked
}

// Use returns a context that ends when the session is revoked, at once if it is. Call release when it is no longer
// used.
func (r *Revocations) Use(id string) (_ context.Context, release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, revoked := r.revoked[id]; revoked {
		ended, end := context.WithCancel(context.Background())
		end()
		return ended, func() {}
	}
	u, used := r.uses[id]
	if !used {
		u = &uses{}
		u.ctx, u.revoke = context.WithCancel(context.Background())
		r.uses[id] = u
	}
	u.count++
	return u.ctx, sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		u.count--
		if u.count == 0 && r.uses[id] == u {
			delete(r.uses, id)
		}
	})
}
