package tunnel

import (
	"context"
	"sync"
)

// Sessions are those that belong together, such as all that a server has accepted. The zero value has none.
type Sessions struct {
	mu       sync.Mutex
	all      map[*Session]struct{}
	draining bool
	serving  sync.WaitGroup
}

// Serve is [Session.Serve]. Once all are being drained it ends with [ErrDraining] at once.
func (s *Sessions) Serve(one *Session) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = one.Close()
		return ErrDraining
	}
	if s.all == nil {
		s.all = map[*Session]struct{}{}
	}
	s.all[one] = struct{}{}
	s.serving.Add(1)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.all, one)
		s.mu.Unlock()
		s.serving.Done()
	}()
	return one.Serve()
}

// Draining says whether no more are served.
func (s *Sessions) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// Drain drains all sessions and waits for their end. What is still there when finish is done is closed.
func (s *Sessions) Drain(finish context.Context) {
	s.mu.Lock()
	s.draining = true
	all := make([]*Session, 0, len(s.all))
	for one := range s.all {
		all = append(all, one)
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	var draining sync.WaitGroup
	for _, one := range all {
		draining.Go(one.Drain) // one that does not read must not hold up the others
	}
	go func() {
		defer close(ended)
		s.serving.Wait()
	}()
	select {
	case <-ended:
	case <-finish.Done():
		for _, one := range all {
			_ = one.Close() // it has no outcome
		}
		<-ended
	}
	draining.Wait()
}

// Streams that are open in all sessions: those that were opened here, and those that the other sides opened.
func (s *Sessions) Streams() (opened, taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.all {
		here, there := one.count()
		opened += here
		taken += there
	}
	return opened, taken
}

func (s *Session) count() (opened, taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, 0
	}
	return len(s.streams) - s.taken, s.taken
}
