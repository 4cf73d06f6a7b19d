package service

import (
	"context"
	"net"
	"slices"
	"sync"

	"lockstep.internal/libs/retry"
)

// Part is one component of a service: a server, a background loop or a health check. All fields but
// Name are optional.
type Part struct {
	// Name is unique in the service. Metrics and /readyz show it.
	Name string
	// StopBefore names parts that this one uses. They stop after it.
	StopBefore []string
	// StartAfter names parts that must be ready before this one starts. They also stop after it.
	StartAfter []string
	// Listen opens a listener. The service opens all listeners before any part runs and closes them
	// at the end. An error ends the service.
	Listen func(ctx context.Context) (net.Listener, error)
	// Run does the work until ctx ends, then finishes within [Handle.DrainContext] and returns. It
	// calls [Handle.Ready] once it is ready. When it returns nil earlier, its work is complete and
	// the part stays ready. An error makes the part not ready and restarts it after 0.1 s to 30 s;
	// a [Permanent] error ends the service.
	Run func(ctx context.Context, part *Handle) error
	// Check returns nil if the part is ready, and the reason otherwise. It is called about once a second and must
	// return when ctx ends. A part with Run and Check is ready when Run has called Ready and Check returns nil. A
	// [Degraded] error is shown and leaves the part ready.
	Check func(ctx context.Context) error
}

// dependencies are the parts that stop after p.
func (p Part) dependencies() []string { return append(slices.Clone(p.StopBefore), p.StartAfter...) }

// Func is a part that is ready as soon as it runs.
func Func(name string, run func(ctx context.Context) error) Part {
	return Part{Name: name, Run: func(ctx context.Context, part *Handle) error {
		part.Ready()
		return run(ctx)
	}}
}

// Handle is what a running part uses to report its readiness. It is safe for concurrent use.
type Handle struct {
	listener net.Listener
	drain    context.Context //nolint:containedctx // returned by DrainContext
	set      func(ready bool, reason string)
	// refused counts a connection or request that an HTTP server refused.
	refused func(reason string)
}

// Ready reports that the part works.
func (h *Handle) Ready() { h.set(true, "") }

// NotReady reports that the part does not work, and why. The part continues to run.
func (h *Handle) NotReady(reason string) { h.set(false, reason) }

// DrainContext returns the context for work that the part finishes after its own context has ended.
// It ends at drain_timeout.
func (h *Handle) DrainContext() context.Context { return h.drain }

// Listener returns the listener that Listen opened, nil without Listen.
func (h *Handle) Listener() net.Listener { return h.listener }

// Permanent marks an error that a restart cannot fix: the service ends with it.
func Permanent(err error) error { return retry.Permanent(err) }

// Degraded marks an error of Check that is shown but leaves the part ready.
func Degraded(err error) error {
	if err == nil {
		return nil
	}
	return &degraded{err}
}

type degraded struct{ error }

func (d *degraded) Unwrap() error { return d.error }

// onceListener is a listener that both the service and its server close.
type onceListener struct {
	net.Listener

	once sync.Once
	err  error
}

func (l *onceListener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}
