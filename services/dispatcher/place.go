package dispatcher

import (
	"sync"
	"time"
)

// spareWorkers is how many slow attempts may run beside each worker.
const spareWorkers = 8

// place is where an attempt runs: a worker's slot at first. An attempt that takes long gives the slot back and takes a spare place,
// as long as there are any, so that attempts which hang until they time out keep nobody else waiting.
type place struct {
	timer *time.Timer

	mu    sync.Mutex
	taken chan struct{} // nil after leave
}

func newPlace(slots, spare chan struct{}, slowAfter time.Duration) *place {
	p := &place{taken: slots}
	p.timer = time.AfterFunc(slowAfter, func() { p.move(spare) })
	return p
}

func (p *place) move(spare chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken == nil {
		return
	}
	select {
	case spare <- struct{}{}:
		<-p.taken
		p.taken = spare
	default:
	}
}

func (p *place) leave() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	<-p.taken
	p.taken = nil
}
