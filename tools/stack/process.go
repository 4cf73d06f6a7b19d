package stack

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// process is one service that runs in this process.
type process struct {
	name string
	// main runs the service with its configuration; ready is called with the addresses it listens on.
	main func(ctx context.Context, ready func(addrs map[string]string)) error

	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// ErrStopped is the cause of a start that was given up since the service ended before it was ready.
var ErrStopped = errors.New("ended before it was ready")

// start runs the service and returns when it is ready.
func (p *process) start(ctx context.Context) (map[string]string, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ready := make(chan map[string]string, 1)
	done := make(chan struct{})
	p.mu.Lock()
	p.cancel, p.done = cancel, done
	p.mu.Unlock()
	go func() {
		defer close(done)
		err := p.main(running, func(addrs map[string]string) { ready <- addrs })
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
	}()
	select {
	case addrs := <-ready:
		return addrs, nil
	case <-done:
		return nil, fmt.Errorf("service %s: %w", p.name, errors.Join(ErrStopped, p.result()))
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("service %s: wait until it is ready: %w", p.name, context.Cause(ctx)), p.stop())
	}
}

// stop drains the service and waits for its end.
func (p *process) stop() error {
	p.mu.Lock()
	cancel, done := p.cancel, p.done
	p.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	<-done
	if err := p.result(); err != nil {
		return fmt.Errorf("service %s: %w", p.name, err)
	}
	return nil
}

func (p *process) result() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// ended is closed when the service has ended; nil before it was started.
func (p *process) ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}
