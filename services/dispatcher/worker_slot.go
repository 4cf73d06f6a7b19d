package dispatcher

import (
	"sync"
	"time"
)

// spareWorkers is the number of slow attempts per worker that may run in addition.
const spareWorkers = 8

// workerSlot is the slot in which an attempt runs. A slow attempt moves from its worker's slot to a
// spare one while there are any, so attempts that hang until their timeout do not block other
// workspaces.
type workerSlot struct {
	timer *time.Timer

	mu   sync.Mutex
	slot chan struct{} // nil after release
}

func newWorkerSlot(slots, spare chan struct{}, slowAfter time.Duration) *workerSlot {
	s := &workerSlot{slot: slots}
	s.timer = time.AfterFunc(slowAfter, func() { s.moveTo(spare) })
	return s
}

func (s *workerSlot) moveTo(spare chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slot == nil {
		return
	}
	select {
	case spare <- struct{}{}:
		<-s.slot
		s.slot = spare
	default:
	}
}

func (s *workerSlot) release() {
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	<-s.slot
	s.slot = nil
}
