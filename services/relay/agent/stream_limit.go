package agent

import "sync"

// streamLimit bounds the number of open streams, and waits for their end.
type streamLimit struct {
	max int

	mu          sync.Mutex
	open        int
	closed      bool
	openStreams sync.WaitGroup
}

// acquire reports whether one more stream is allowed. The caller releases it later.
func (l *streamLimit) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.open >= l.max {
		return false
	}
	l.open++
	l.openStreams.Add(1)
	return true
}

func (l *streamLimit) release() {
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
	l.openStreams.Done()
}

func (l *streamLimit) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// closeAndWait refuses more streams, and waits until all are released.
func (l *streamLimit) closeAndWait() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.openStreams.Wait()
}
