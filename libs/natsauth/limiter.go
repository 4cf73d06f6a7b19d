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

// limiter limits clients that fail repeatedly, to protect the authenticator and the database behind it. It counts
// refusals per user and host, so an attacker on another host cannot lock out an agent. Tokens are too long to
// guess: the limiter protects capacity, not secrets.
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

// allowed reports whether the source may try again in this window.
func (l *limiter) allowed(s source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.rotate()

	return l.refused[s] < limiterRefused
}

// fail counts a refusal. It counts at most limiterSources sources per window, to bound the memory.
func (l *limiter) fail(s source) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.rotate()

	if _, known := l.refused[s]; known || len(l.refused) < limiterSources {
		l.refused[s]++
	}
}

// rotate starts a new window when the old one has ended. The lock must be held.
func (l *limiter) rotate() {
	if now := l.now(); !now.Before(l.until) {
		l.until = now.Add(limiterWindow)
		clear(l.refused)
	}
}
