package tunnel

import (
	"context"
	"sync"
)

// SessionGroup is a set of sessions that are drained together, such as all sessions of a server. The zero value
// is empty.
type SessionGroup struct {
	mu       sync.Mutex
	sessions map[*Session]struct{}
	draining bool
	serving  sync.WaitGroup
}

// Serve is [Session.Serve]. During a drain it closes the session and returns [ErrDraining].
func (g *SessionGroup) Serve(s *Session) error {
	g.mu.Lock()
	if g.draining {
		g.mu.Unlock()
		_ = s.Close()
		return ErrDraining
	}
	if g.sessions == nil {
		g.sessions = map[*Session]struct{}{}
	}
	g.sessions[s] = struct{}{}
	g.serving.Add(1)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.sessions, s)
		g.mu.Unlock()
		g.serving.Done()
	}()
	return s.Serve()
}

// Draining reports whether Drain was called.
func (g *SessionGroup) Draining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.draining
}

// Drain drains all sessions and waits for their end. When drainCtx is done it closes those that are left.
func (g *SessionGroup) Drain(drainCtx context.Context) {
	g.mu.Lock()
	g.draining = true
	sessions := make([]*Session, 0, len(g.sessions))
	for s := range g.sessions {
		sessions = append(sessions, s)
	}
	g.mu.Unlock()
	ended := make(chan struct{})
	var draining sync.WaitGroup
	for _, s := range sessions {
		draining.Go(s.Drain) // one that does not read must not delay the others
	}
	go func() {
		defer close(ended)
		g.serving.Wait()
	}()
	select {
	case <-ended:
	case <-drainCtx.Done():
		for _, s := range sessions {
			_ = s.Close() // always nil
		}
		<-ended
	}
	draining.Wait()
}

// Streams counts the open streams of all sessions: opened by this side, and accepted from the other sides.
func (g *SessionGroup) Streams() (opened, accepted int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sessions {
		o, a := s.count()
		opened += o
		accepted += a
	}
	return opened, accepted
}
