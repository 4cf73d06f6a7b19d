package chaos_test

import (
	"context"
	"fmt"
	"sync"
)

// schedule spreads faults over the changes of users, so that neither gets far ahead of the other.
type schedule struct {
	lead int // of the users, in changes

	mu       sync.Mutex
	changes  int   // so far
	faultsAt []int // numbers of changes after which the remaining faults are due
	updated  chan struct{}
}

func newSchedule(lead int, faults []int) *schedule {
	return &schedule{lead: lead, faultsAt: faults, updated: make(chan struct{})}
}

// awaitTurn waits until a change may be made.
func (p *schedule) awaitTurn(ctx context.Context) error {
	return p.await(ctx, func() bool { return len(p.faultsAt) == 0 || p.changes < p.faultsAt[0]+p.lead })
}

// changed counts changes.
func (p *schedule) changed(changes int) { p.update(func() { p.changes += changes }) }

// awaitFault waits until the next fault is due. It returns false when there is none.
func (p *schedule) awaitFault(ctx context.Context) (bool, error) {
	over := false
	err := p.await(ctx, func() bool {
		over = len(p.faultsAt) == 0
		return over || p.changes >= p.faultsAt[0]
	})
	return !over && err == nil, err
}

// faultDone records that the due fault has occurred.
func (p *schedule) faultDone() { p.update(func() { p.faultsAt = p.faultsAt[1:] }) }

func (p *schedule) update(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how()
	close(p.updated)
	p.updated = make(chan struct{})
}

func (p *schedule) await(ctx context.Context, is func() bool) error {
	for {
		p.mu.Lock()
		met, changed := is(), p.updated
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
