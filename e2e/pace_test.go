package e2e_test

import (
	"context"
	"fmt"
	"sync"
)

// pace spreads what befalls a system over what its users do, so that neither gets far ahead of the other.
type pace struct {
	lead int // of the users, in changes

	mu      sync.Mutex
	changes int   // made so far
	fates   []int // what is to come: after how many changes each
	changed chan struct{}
}

func newPace(lead int, fates []int) *pace {
	return &pace{lead: lead, fates: fates, changed: make(chan struct{})}
}

// begin waits until a change may be made.
func (p *pace) begin(ctx context.Context) error {
	return p.await(ctx, func() bool { return len(p.fates) == 0 || p.changes < p.fates[0]+p.lead })
}

// done counts changes.
func (p *pace) done(changes int) { p.change(func() { p.changes += changes }) }

// next waits until the next fate is due; false when there is none.
func (p *pace) next(ctx context.Context) (bool, error) {
	over := false
	err := p.await(ctx, func() bool {
		over = len(p.fates) == 0
		return over || p.changes >= p.fates[0]
	})
	return !over && err == nil, err
}

// fulfilled is that the fate that was due has come.
func (p *pace) fulfilled() { p.change(func() { p.fates = p.fates[1:] }) }

func (p *pace) change(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pace) await(ctx context.Context, is func() bool) error {
	for {
		p.mu.Lock()
		met, changed := is(), p.changed
		p.mu.Unlock()
		if met {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the others: %w", context.Cause(ctx))
		}
	}
}
