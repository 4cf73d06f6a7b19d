package stack

import (
	"context"
	"errors"
	"fmt"
	"sync"

	libservice "lockstep.internal/libs/service"
)

// service is one of the stack's services. It may be started and stopped again and again, each time
// with its configuration made anew.
type service struct {
	name string
	// configure makes its configuration. It is given the addresses of the life before, by listener:
	// a restarted service is found where it was.
	configure func(before map[string]string) configuration
	// begin begins a life.
	begin func(name string, cfg configuration) (*life, error)
	// again makes a replica of another name.
	again func(name string) *service

	mu    sync.Mutex
	life  *life // the present or last one; nil before the first
	addrs map[string]string
}

// configuration of a service.
type configuration struct {
	// settings are a pointer to its Config, and common the part of it that all services have.
	settings any
	common   *libservice.Config
	// main runs the service with these settings in this process.
	main func(ctx context.Context) error
}

// life is what is between a start of a service and its end.
type life struct {
	ready chan map[string]string // receives the addresses that it listens on, once
	ended chan struct{}          // closed at its end
	err   error                  // how it ended; read after ended
	drain func() error           // asks it to end in order
	kill  func() error           // ends it as a crash does
}

var (
	// ErrStopped is the cause of a start that was given up since the service ended before it was
	// ready.
	ErrStopped = errors.New("ended before it was ready")
	// ErrEnded is that a service was not there any more.
	ErrEnded = errors.New("ended by itself")
	// ErrInside refuses to kill a service that runs in this process.
	ErrInside = errors.New("runs in this process and cannot be killed alone; give the stack a folder of programs")
)

// start runs the service and returns when it is ready.
func (s *service) start(ctx context.Context) error {
	begun, err := s.begin(s.name, s.configure(s.addresses()))
	if err != nil {
		return fmt.Errorf("service %s: %w", s.name, err)
	}
	s.mu.Lock()
	s.life = begun
	s.mu.Unlock()
	select {
	case addrs := <-begun.ready:
		s.found(addrs)
	case <-begun.ended:
		select {
		case addrs := <-begun.ready: // it was, before it ended
			s.found(addrs)
		default:
			return fmt.Errorf("service %s: %w", s.name, errors.Join(ErrStopped, begun.err))
		}
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("service %s: wait until it is ready: %w", s.name, context.Cause(ctx)), s.stop())
	}
	return nil
}

// stop drains the service and waits for its end.
func (s *service) stop() error { return s.end(func(l *life) error { return l.drain() }) }

// kill ends the service without a word. One that has ended by itself before was not killed, which
// is an error.
func (s *service) kill() error {
	return s.end(func(l *life) error {
		select {
		case <-l.ended:
			return errors.Join(ErrEnded, l.err)
		default:
			return l.kill()
		}
	})
}

func (s *service) end(how func(*life) error) error {
	present := s.present()
	if present == nil {
		return nil
	}
	if err := how(present); err != nil {
		return fmt.Errorf("service %s: %w", s.name, err)
	}
	<-present.ended
	if present.err != nil {
		return fmt.Errorf("service %s: %w", s.name, present.err)
	}
	return nil
}

// present is the present or last life; nil before the first.
func (s *service) present() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

func (s *service) found(addrs map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = addrs
}

func (s *service) addresses() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addrs
}

// inside runs a service in this process.
func inside(_ string, cfg configuration) (*life, error) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{
		ready: make(chan map[string]string, 1), ended: make(chan struct{}),
		drain: func() error { cancel(); return nil },
		kill:  func() error { return ErrInside },
	}
	cfg.common.OnReady = func(addrs map[string]string) { l.ready <- addrs }
	go func() {
		defer close(l.ended)
		defer cancel()
		l.err = cfg.main(ctx)
	}()
	return l, nil
}
