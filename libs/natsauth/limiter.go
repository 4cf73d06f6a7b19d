package natsauth

import (
	"sync"
	"time"
)

const (
	limiterWindow  = 10 * time.Second
	limiterRefused = 20
	limiterSources = 16 << 10
)

// limiter spares the authenticator (and the database behind it) from clients that fail again and
// again. It counts refusals per user and host, so that a stranger who tries an agent's name from
// elsewhere does not lock it out. Tokens are too long to guess: the limiter protects capacity, not
// secrets.
type limiter struct {
	now func() time.Time

	mu      sync.Mutex
	until   time.Time
	refused map[source]int
}

type source struct {
	host string
	user string
}

func newLimiter(now func() time.Time) *limiter {
	return &limiter{now: now, refused: make(map[source]int)}
}

// allowed says whether the source may try again in this window.
func (l *limiter) allowed(s source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.turn()

	return l.refused[s] < limiterRefused
}

// fail counts a refusal. Past limiterSources in one window, further sources go uncounted to bound
// the memory.
func (l *limiter) fail(s source) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.turn()

	if _, known := l.refused[s]; known || len(l.refused) < limiterSources {
		l.refused[s]++
	}
}

// turn opens a new window when the old one is over. The lock must be held.
func (l *limiter) turn() {
	if now := l.now(); !now.Before(l.until) {
		l.until = now.Add(limiterWindow)
		clear(l.refused)
	}
}
