package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// timeline has events in the order in which they were seen. Its methods may be called from any goroutine, except first.
type timeline[E any] struct {
	mu      sync.Mutex
	events  []E
	times   []time.Time
	err     error
	changed chan struct{} // closed and replaced after each event
}

func newTimeline[E any]() *timeline[E] { return &timeline[E]{changed: make(chan struct{})} }

// add adds an event, or an error that ends the benchmark.
func (t *timeline[E]) add(event E, at time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err = err; err == nil {
		t.events, t.times = append(t.events, event), append(t.times, at)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// first waits for an event that matches and returns the time of the first one. Only the goroutine of the benchmark may
// call it.
func (t *timeline[E]) first(ctx context.Context, matches func(E) bool) time.Time {
	for next := 0; ; {
		t.mu.Lock()
		events, times, err, changed := t.events, t.times, t.err, t.changed
		t.mu.Unlock()
		check(err)
		for ; next < len(events); next++ {
			if matches(events[next]) {
				return times[next]
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			check(fmt.Errorf("wait for a %T: %w", *new(E), context.Cause(ctx)))
		}
	}
}
