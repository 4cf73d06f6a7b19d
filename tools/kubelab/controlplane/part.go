package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Part is one running component.
type Part struct {
	name   string
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// Go runs a component until ctx ends or Stop is called.
func Go(ctx context.Context, name string, run func(context.Context) error) *Part {
	ctx, cancel := context.WithCancel(ctx)
	p := &Part{name: name, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		err := run(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			p.err = fmt.Errorf("%s ended by itself", name)
		default:
			p.err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	return p
}

// Name returns the component's name.
func (p *Part) Name() string { return p.name }

// Done is closed when the component has ended.
func (p *Part) Done() <-chan struct{} { return p.ended }

// Err returns the error of a component that exited by itself; nil while it runs and after Stop.
func (p *Part) Err() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// Stop stops the component and waits for its end, at most timeout.
func (p *Part) Stop(timeout time.Duration) error {
	p.cancel()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s: %w", p.name, errStopTimeout)
	}
}

var errStopTimeout = errors.New("did not stop in time")
