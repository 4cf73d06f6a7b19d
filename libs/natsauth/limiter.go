package natsauth

import (
	"sync"
	"time"
)

const (
	limiterWindow  = 10 * time.Second
	limiterRefused = 20
	// limiterHostRefused is for all users of a host together, since a host can invent users.
	limiterHostRefused = 200
	limiterSources     = 16 << 10
)

// limiter limits clients that fail repeatedly, to protect the authenticator and the database behind it. It counts
// refusals per user and host, and per host, so an attacker on another host cannot lock out an agent. Tokens are too
// long to guess: the limiter protects capacity, not secrets.
type limiter struct {
	now func() time.Time

	mu      sync.Mutex
	until   time.Time
	refused map[source]int
	hosts   map[string]int
}

type source struct {
	host string
	user string
}

func newLimiter(now func() time.Time) *limiter {
	return &limiter{now: now, refused: make(map[source]int), hosts: make(map[string]int)}
}

// allowed reports whether the source may try again in this window.
func (l *limiter) allowed(s source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.rotate()

	return l.refused[s] < limiterRefused && l.hosts[s.host] < limiterHostRefused
}

// fail counts a refusal. It counts at most limiterSources sources and hosts per window, to bound the memory.
func (l *limiter) fail(s source) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.rotate()

	count(l.refused, s)
	count(l.hosts, s.host)
}

func count[K comparable](refused map[K]int, key K) {
	if _, known := refused[key]; known || len(refused) < limiterSources {
		refused[key]++
	}
}

// rotate starts a new window when the old one has ended. The lock must be held.
func (l *limiter) rotate() {
	if now := l.now(); !now.Before(l.until) {
		l.until = now.Add(limiterWindow)
		clear(l.refused)
		clear(l.hosts)
	}
}
