package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// AddReplica starts another replica of a service, with the same configuration but for its
// addresses, and returns its name when it is ready.
func (s *Stack) AddReplica(ctx context.Context, of string) (string, error) {
	original, err := s.service(of)
	if err != nil {
		return "", err
	}
	var replica *service
	for n := 2; replica == nil; n++ {
		name := replicaName(of, n)
		if _, err := s.service(name); err != nil {
			replica = original.newReplica(name)
		}
	}
	return replica.name, s.run(ctx, replica)
}

// replicaName is the name of the nth replica of a service: the first replica has the service's name.
func replicaName(of string, n int) string {
	if n == 1 {
		return of
	}
	return fmt.Sprintf("%s#%d", of, n)
}

// Restart drains a service and starts it again.
func (s *Stack) Restart(ctx context.Context, name string) error {
	if err := s.StopService(name); err != nil {
		return err
	}
	return s.StartService(ctx, name)
}

// StopService drains a service.
func (s *Stack) StopService(name string) error {
	found, err := s.service(name)
	if err != nil {
		return err
	}
	return found.stop()
}

// StartService starts a service that was stopped or killed and returns when it is ready. It listens
// where it did before.
func (s *Stack) StartService(ctx context.Context, name string) error {
	found, err := s.service(name)
	if err != nil {
		return err
	}
	return found.start(ctx)
}

// Kill ends a service as a crash does (SIGKILL): without any cleanup. It returns [ErrInProcess] unless
// Options.Programs is set, and [ErrExited] if the service had exited before.
func (s *Stack) Kill(name string) error {
	found, err := s.service(name)
	if err != nil {
		return err
	}
	return found.kill()
}

// Signal sends a signal that does not end a service, such as SIGSTOP. It returns [ErrInProcess] unless Options.Programs
// is set.
func (s *Stack) Signal(name string, signal syscall.Signal) error {
	found, err := s.service(name)
	if err != nil {
		return err
	}
	return found.do(func(r *Run) error { return r.Signal(signal) })
}

// Address is where a service listened when it was last ready, as host:port; empty if it has no such listener.
func (s *Stack) Address(name, listener string) string {
	found, err := s.service(name)
	if err != nil {
		return ""
	}
	return found.addresses()[listener]
}

func (s *Stack) service(name string) (*service, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.services, func(candidate *service) bool { return candidate.name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown service %q", name)
	}
	return s.services[i], nil
}

// Failed returns the error of the first service or dependency that exits by itself.
func (s *Stack) Failed(ctx context.Context) error {
	var labDone <-chan struct{}
	if s.lab != nil {
		labDone = s.lab.Done()
	}
	s.mu.Lock()
	services := slices.Clone(s.services)
	s.mu.Unlock()
	ended := make(chan error, len(services))
	for _, each := range services {
		current := each.current()
		go func() {
			select {
			case <-current.ended:
				ended <- fmt.Errorf("service %s: %w", each.name, errors.Join(ErrExited, current.err))
			case <-ctx.Done():
			}
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-labDone:
		return s.lab.Err()
	case err := <-ended:
		return err
	}
}
