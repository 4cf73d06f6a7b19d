package service

import (
	"context"
	"net"
	"slices"
	"sync"

	"lockstep.internal/libs/retry"
)

// Part is one long-lived piece of a service. All fields but Name are optional.
type Part struct {
	// Name is unique in the service: metrics and /readyz use it.
	Name string
	// StopBefore names the parts that this one works with: they are stopped after it.
	StopBefore []string
	// StartAfter is Uses for a part that cannot begin without: it is started once those have been ready.
	StartAfter []string
	// Listen opens a listener. All are opened before any part runs, and the service closes them; an
	// error ends the service.
	Listen func(ctx context.Context) (net.Listener, error)
	// Run works until its context is done, then finishes within Self.Finish and returns. It says when
	// it is ready. Nil returned earlier means the job is done: the part stays ready. An error makes it
	// not ready and is retried with back-off, from 0.1 s to 30 s; one marked Permanent ends the service.
	Run func(ctx context.Context, self *Handle) error
	// Check says why the part is not ready, nil when it is. It is called about once a second and must
	// return when its context ends. With Run, both must agree. An error marked Degraded is shown and
	// leaves the part ready.
	Check func(ctx context.Context) error
}

// needs are the parts that are stopped after p.
func (p Part) needs() []string { return append(slices.Clone(p.StopBefore), p.StartAfter...) }

// Func is a part that counts as ready as soon as it runs.
func Func(name string, run func(ctx context.Context) error) Part {
	return Part{Name: name, Run: func(ctx context.Context, self *Handle) error {
		self.Ready()
		return run(ctx)
	}}
}

// Handle is what a part knows of itself while it runs. It is safe for concurrent use.
type Handle struct {
	listener net.Listener
	finish   context.Context //nolint:containedctx // handed out as it is
	set      func(ready bool, reason string)
}

// Ready says that the part does its work.
func (s *Handle) Ready() { s.set(true, "") }

// NotReady says that it does not, and why; the part goes on running.
func (s *Handle) NotReady(reason string) { s.set(false, reason) }

// DrainContext is the context for what is in hand when the part is told to stop: it ends when the drain
// time-out is over.
func (s *Handle) DrainContext() context.Context { return s.finish }

// Listener is what Listen of the part opened, nil without Listen.
func (s *Handle) Listener() net.Listener { return s.listener }

// Permanent marks an error that retrying cannot mend: the service ends with it.
func Permanent(err error) error { return retry.Permanent(err) }

// Degraded marks what a Check found as worth showing but no reason to be not ready.
func Degraded(err error) error {
	if err == nil {
		return nil
	}
	return &degraded{err}
}

type degraded struct{ error }

func (d *degraded) Unwrap() error { return d.error }

// onceListener lets the service close a listener that its server may have closed already.
type onceListener struct {
	net.Listener

	once sync.Once
	err  error
}

func (l *onceListener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}
