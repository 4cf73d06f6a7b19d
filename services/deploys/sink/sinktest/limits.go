package sinktest

import (
	"sync"
	"time"
)

// Window is a limit of a server: at most Count requests in any Length.
type Window struct {
	Count  int
	Length time.Duration
}

// RateLimiter enforces windows like a server. After an exceeded limit, it rejects all requests for a time.
type RateLimiter struct {
	Windows []Window
	// Penalty is how long all requests are rejected after a limit was exceeded.
	Penalty time.Duration

	mu      sync.Mutex
	entries []time.Time
	closed  time.Time
	refused int
	early   int
}

// Allow reports whether a request is allowed. Otherwise it also returns how long requests are rejected.
func (g *RateLimiter) Allow() (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Before(g.closed) {
		g.refused++
		g.early++
		return g.closed.Sub(now), false
	}
	for _, w := range g.Windows {
		count := 0
		for _, at := range g.entries {
			if now.Sub(at) < w.Length {
				count++
			}
		}
		if count >= w.Count {
			g.refused++
			g.closed = now.Add(g.Penalty)
			return g.Penalty, false
		}
	}
	g.entries = append(g.entries, now)
	return 0, true
}

// Refused returns the number of rejected requests, and how many of them came during a penalty.
func (g *RateLimiter) Refused() (refused, early int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused, g.early
}
