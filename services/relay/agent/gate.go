package agent

import "sync"

// gate bounds how many streams there are, and waits for their end.
type gate struct {
	most int

	mu     sync.Mutex
	open   int
	closed bool
	empty  sync.WaitGroup
}

// enter says whether there is room for one more; it leaves later.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.open >= g.most {
		return false
	}
	g.open++
	g.empty.Add(1)
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	g.open--
	g.mu.Unlock()
	g.empty.Done()
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// close lets nobody in any more, and waits until all have left.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.empty.Wait()
}
