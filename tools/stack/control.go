package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
			replica = original.again(name)
		}
	}
	return replica.name, s.run(ctx, replica)
}

// replicaName is the name of the nth replica of a service: the first one bears the service's.
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

// Kill ends a service as a crash does (SIGKILL): it finishes, tells and gives back nothing. It is
// [ErrInside] unless the stack has Programs, and [ErrEnded] when the service had ended by itself.
func (s *Stack) Kill(name string) error {
	found, err := s.service(name)
	if err != nil {
		return err
	}
	return found.kill()
}

// Address is where a service listened when it was last ready, as host:port; empty for a listener
// that it has not.
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
		return nil, fmt.Errorf("no service %q runs here", name)
	}
	return s.services[i], nil
}

// Failed receives the first service's or part's error when one ends by itself.
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
		present := each.present()
		go func() {
			select {
			case <-present.ended:
				ended <- fmt.Errorf("service %s: %w", each.name, errors.Join(ErrEnded, present.err))
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
