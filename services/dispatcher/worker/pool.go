// Package worker bounds the concurrent attempts to apply workspaces.
//
// A slow attempt moves to a spare slot if one is free. So attempts that hang until their timeout do not block other
// workspaces.
package worker

import (
	"context"
	"sync"
	"time"
)

// spareSlots is the number of additional slots for slow attempts, per worker.
const spareSlots = 8

// Pool limits the concurrent attempts by slots. It is safe for concurrent use.
type Pool struct {
	slots, spare chan struct{}
	slowAfter    time.Duration
}

// NewPool returns a pool with a slot for each worker. An attempt that takes longer than slowAfter moves to a spare
// slot.
func NewPool(workers int, slowAfter time.Duration) *Pool {
	return &Pool{
		slots: make(chan struct{}, workers), spare: make(chan struct{}, spareSlots*workers), slowAfter: slowAfter,
	}
}

// Acquire waits for a free slot until ctx ends.
func (p *Pool) Acquire(ctx context.Context) error {
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // the cause is the caller's
	}
}

// Run runs an attempt in an acquired slot and releases it.
func (p *Pool) Run(attempt func()) {
	s := &slot{held: p.slots}
	timer := time.AfterFunc(p.slowAfter, func() { s.moveTo(p.spare) })
	defer s.release()
	defer timer.Stop()
	attempt()
}

// slot is the slot that an attempt holds.
type slot struct {
	mu   sync.Mutex
	held chan struct{} // nil after release
}

func (s *slot) moveTo(spare chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		return
	}
	select {
	case spare <- struct{}{}:
		<-s.held
		s.held = spare
	default:
	}
}

func (s *slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	<-s.held
	s.held = nil
}
