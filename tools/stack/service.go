package stack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	libservice "lockstep.internal/libs/service"
	"lockstep.internal/tools/testkit/port"
)

// service is one of the stack's services. It can be started and stopped repeatedly. Its configuration is
// created at each start.
type service struct {
	name string
	// listen has the address of each listener that other programs connect to.
	listen map[string]string
	// configure creates its configuration. addresses are those of listen, with a port. A restarted service keeps them.
	configure func(addresses map[string]string) configuration
	// launch starts a run of the service.
	launch func(name string, cfg configuration) (*Run, error)
	// newReplica returns a replica with another name.
	newReplica func(name string) *service

	mu       sync.Mutex
	run      *Run // the current or last one; nil before the first
	addrs    map[string]string
	reserved map[string]string
	held     []*port.Held // the free ports of reserved, so that no other process gets them between two runs
}

// configuration of a service.
type configuration struct {
	// settings are a pointer to its Config, and common the part of it that all services have.
	settings any
	common   *libservice.Config
	// main runs the service with these settings in this process.
	main func(ctx context.Context) error
}

// Run is one run of a service or program.
type Run struct {
	ready  chan map[string]string // receives the addresses that it listens on, once
	ended  chan struct{}          // closed when it has exited
	err    error                  // of its exit; read after ended
	signal func(syscall.Signal) error
}

var (
	// ErrStopped means that the service exited before it was ready.
	ErrStopped = errors.New("exited before it was ready")
	// ErrExited means that the service had already exited.
	ErrExited = errors.New("exited by itself")
	// ErrInProcess refuses a signal to a service that runs in this process.
	ErrInProcess = errors.New("runs in this process and cannot be killed: set Options.Programs")
)

// start runs the service and returns when it is ready.
func (s *service) start(ctx context.Context) error {
	addresses, err := s.reserve()
	if err != nil {
		return fmt.Errorf("service %s: %w", s.name, err)
	}
	begun, err := s.launch(s.name, s.configure(addresses))
	if err != nil {
		return fmt.Errorf("service %s: %w", s.name, err)
	}
	s.mu.Lock()
	s.run = begun
	s.mu.Unlock()
	addrs, err := begun.Ready(ctx)
	if err != nil {
		return fmt.Errorf("service %s: %w", s.name, err)
	}
	s.mu.Lock()
	s.addrs = addrs
	s.mu.Unlock()
	return nil
}

// Ready waits until it is ready and returns the addresses that it listens on. When ctx is done, it stops it. It may be
// called once.
func (r *Run) Ready(ctx context.Context) (map[string]string, error) {
	select {
	case addrs := <-r.ready:
		return addrs, nil
	case <-r.ended:
		select {
		case addrs := <-r.ready: // it was ready before it exited
			return addrs, nil
		default:
			return nil, errors.Join(ErrStopped, r.err)
		}
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("wait until it is ready: %w", context.Cause(ctx)), r.Stop())
	}
}

// Ended is closed when it has exited.
func (r *Run) Ended() <-chan struct{} { return r.ended }

// Stop drains it, waits for its exit, and returns the error of the exit.
func (r *Run) Stop() error { return r.stopWith(syscall.SIGTERM) }

// Kill ends it as a crash does and waits for its exit. It returns [ErrExited] if it had exited before.
func (r *Run) Kill() error {
	select {
	case <-r.ended:
		return errors.Join(ErrExited, r.err)
	default:
		return r.stopWith(syscall.SIGKILL)
	}
}

// Signal sends a signal that does not end it, such as SIGSTOP.
func (r *Run) Signal(signal syscall.Signal) error { return r.signal(signal) }

// stopWith sends a signal and waits for the exit.
func (r *Run) stopWith(signal syscall.Signal) error {
	if err := r.signal(signal); err != nil {
		return err
	}
	<-r.ended
	return r.err
}

// reserve returns the addresses to listen on. It holds free ports until release.
func (s *service) reserve() (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reserved != nil {
		return s.reserved, nil
	}
	reserved := make(map[string]string, len(s.listen))
	for listener, address := range s.listen {
		if address == anyPort {
			held, err := port.Hold()
			if err != nil {
				return nil, fmt.Errorf("listener %s: %w", listener, err)
			}
			s.held, address = append(s.held, held), held.Address()
		}
		reserved[listener] = address
	}
	s.reserved = reserved
	return reserved, nil
}

// release releases the ports of a service that does not start again.
func (s *service) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, held := range s.held {
		errs = append(errs, held.Release())
	}
	return errors.Join(errs...)
}

// stop drains the service and waits for its end.
func (s *service) stop() error { return s.do((*Run).Stop) }

// kill sends SIGKILL. It is an error if the service had already exited.
func (s *service) kill() error { return s.do((*Run).Kill) }

// do calls a method of the current run, if there is one.
func (s *service) do(act func(*Run) error) error {
	current := s.current()
	if current == nil {
		return nil
	}
	if err := act(current); err != nil {
		return fmt.Errorf("service %s: %w", s.name, err)
	}
	return nil
}

// current returns the current or last run; nil before the first.
func (s *service) current() *Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

func (s *service) addresses() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addrs
}

// inProcess runs a service in this process.
func inProcess(_ string, cfg configuration) (*Run, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Run{
		ready: make(chan map[string]string, 1), ended: make(chan struct{}),
		signal: func(signal syscall.Signal) error {
			if signal != syscall.SIGTERM {
				return ErrInProcess
			}
			cancel()
			return nil
		},
	}
	cfg.common.OnReady = func(addrs map[string]string) { r.ready <- addrs }
	go func() {
		defer close(r.ended)
		defer cancel()
		r.err = cfg.main(ctx)
	}()
	return r, nil
}
