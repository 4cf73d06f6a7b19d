package sinktest

import (
	"sync"
	"time"
)

// Window is a limit as a server keeps it: at most Count in any Length.
type Window struct {
	Count  int
	Length time.Duration
}

// Gate keeps windows, and punishes who does not stay away as long as he was told.
type Gate struct {
	Windows []Window
	// Penalty is how long nobody is let in once a limit is exceeded.
	Penalty time.Duration

	mu      sync.Mutex
	entries []time.Time
	closed  time.Time
	refused int
	early   int
}

// Enter says whether one may enter, and otherwise for how long not.
func (g *Gate) Enter() (time.Duration, bool) {
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

// Refused is how many were refused, Early how many of them came before they should.
func (g *Gate) Refused() (refused, early int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused, g.early
}
