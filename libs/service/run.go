package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	checkInterval = time.Second
	// straggle is what parts get to return in after the drain time-out has cancelled everything.
	straggle = time.Second
	// steady is how long a part must have run for its next failure to count as a first one.
	steady = time.Minute
	// opsName is the ops listener among the addresses.
	opsName = "ops"
)

// ReadyMessage is that of the log entry by which a service says that all its parts are ready for the first time, with the attribute "addresses": what
// [Config.OnReady] is to a program that runs it within, the entry is to one that starts it.
const ReadyMessage = "the service is ready"

// Options of Run. All fields are needed.
type Options struct {
	Name    string // of the service, for the log
	Config  Config
	Logger  *slog.Logger
	Metrics *prometheus.Registry // served on /metrics; Run adds the state of the parts
}

// Run runs the parts until ctx is done or one fails for good, and drains. It returns nil after a drain
// in time; the error of the part that failed for good; or an error (deadline_exceeded) that names the
// parts that did not end within the drain time-out and are left behind.
func Run(ctx context.Context, options Options, parts ...Part) error {
	if err := checkParts(parts); err != nil {
		return fmt.Errorf("service %s: %w", options.Name, err)
	}
	r := &run{options: options, logger: options.Logger, failed: make(chan error, len(parts)+1), addrs: map[string]string{}}
	if err := r.prepare(ctx, parts); err != nil {
		return fmt.Errorf("service %s: %w", options.Name, err)
	}
	return r.run(ctx)
}

// running is one part at work.
type running struct {
	Part

	self    *Handle
	ctx     context.Context //nolint:containedctx // lives as long as the part
	cancel  context.CancelFunc
	stopped chan struct{} // closed when Run of the part has returned for the last time
}

type run struct {
	options  Options
	logger   *slog.Logger
	health   *health
	restarts *prometheus.CounterVec
	parts    []*running
	ops      *running
	addrs    map[string]string
	failed   chan error // buffered for every part: the first ends the service

	finish       context.Context //nolint:containedctx // Self.Finish of all parts
	cancelFinish context.CancelFunc
}

func checkParts(parts []Part) error {
	byName := map[string]Part{}
	for _, p := range parts {
		if _, twice := byName[p.Name]; twice || p.Name == "" || p.Name == opsName {
			return fmt.Errorf("part name %q is empty, taken or %q", p.Name, opsName)
		}
		byName[p.Name] = p
	}
	for _, p := range parts {
		for _, name := range p.needs() {
			if _, exists := byName[name]; !exists {
				return fmt.Errorf("part %s needs %q, which is none of the parts", p.Name, name)
			}
		}
	}
	// A part that needs none but placed ones can be placed; what is left needs itself.
	placed := map[string]bool{}
	for range parts {
		for _, p := range parts {
			missing := func(name string) bool { return !placed[name] }
			placed[p.Name] = placed[p.Name] || !slices.ContainsFunc(p.needs(), missing)
		}
	}
	for _, p := range parts {
		if !placed[p.Name] {
			return fmt.Errorf("part %s needs itself, by way of its Uses and After", p.Name)
		}
	}
	return nil
}

func (r *run) prepare(ctx context.Context, parts []Part) error {
	var err error
	if r.health, err = newHealth(r.logger, r.options.Metrics, parts, r.onReady); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	r.restarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_part_restarts_total", Help: "How often a part failed and was started again.",
	}, []string{"part"})
	if err := r.options.Metrics.Register(r.restarts); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	r.finish, r.cancelFinish = context.WithCancel(context.WithoutCancel(ctx))
	r.ops = r.add(ctx, HTTPServer(opsName, r.options.Config.Ops, opsHandler(r.health, r.options.Metrics), HTTPOptions{Logger: r.logger}))
	for _, p := range parts {
		r.parts = append(r.parts, r.add(ctx, p))
	}
	for _, p := range append([]*running{r.ops}, r.parts...) {
		if p.Listen == nil {
			continue
		}
		listener, err := p.Listen(ctx)
		if err != nil {
			r.close()
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		p.self.listener = &onceListener{Listener: listener}
		r.addrs[p.Name] = listener.Addr().String()
	}
	return nil
}

func (r *run) add(ctx context.Context, p Part) *running {
	started := &running{Part: p, stopped: make(chan struct{})}
	started.ctx, started.cancel = context.WithCancel(context.WithoutCancel(ctx))
	started.self = &Handle{finish: r.finish, set: func(ready bool, reason string) {
		if p.Name != opsName {
			r.health.setSelf(p.Name, ready, reason)
		}
	}}
	return started
}

// close releases what prepare made; it is harmless after a drain.
func (r *run) close() {
	r.cancelFinish()
	for _, p := range append([]*running{r.ops}, r.parts...) {
		p.cancel()
		if p.self.listener != nil {
			if err := p.self.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				r.logger.Warn("cannot close the listener", slog.String("part", p.Name), slog.String("error", err.Error()))
			}
		}
	}
}

func (r *run) onReady() {
	r.logger.Info(ReadyMessage, slog.Any("addresses", r.addrs))
	if r.options.Config.OnReady != nil {
		r.options.Config.OnReady(maps.Clone(r.addrs))
	}
}

func (r *run) run(ctx context.Context) error {
	defer r.close()
	checks, stopChecks := context.WithCancel(context.WithoutCancel(ctx))
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stopChecks()

	r.logger.InfoContext(ctx, "listening", slog.Any("addresses", r.addrs))
	go r.supervise(r.ops)
	if r.options.Config.OnListen != nil {
		r.options.Config.OnListen(maps.Clone(r.addrs))
	}
	if len(r.parts) == 0 {
		r.onReady()
	}
	for _, p := range r.parts {
		if p.Check != nil {
			watchers.Go(func() { r.health.watch(checks, p.Part, checkInterval) })
		}
		if p.Run == nil {
			r.health.setSelf(p.Name, true, "")
			close(p.stopped)
			continue
		}
		go r.supervise(p)
	}

	var failure error
	select {
	case <-ctx.Done():
		r.logger.InfoContext(ctx, "draining", slog.String("cause", context.Cause(ctx).Error()),
			slog.Duration("timeout", r.options.Config.DrainTimeout))
	case failure = <-r.failed:
		r.logger.ErrorContext(ctx, "ending after a failure that cannot be mended", slog.String("error", failure.Error()))
	}
	r.health.drain()
	late := r.drain()
	if failure == nil && len(late) > 0 {
		failure = fault.New(errcode.DeadlineExceeded, "service %s: not drained within %s: %s",
			r.options.Name, r.options.Config.DrainTimeout, strings.Join(late, ", "))
	}
	return failure
}

// supervise runs one part, again and again, until it is told to stop.
func (r *run) supervise(p *running) {
	defer close(p.stopped)
	for _, name := range p.StartAfter {
		p.self.NotReady("waits for " + name)
		select {
		case <-r.health.first(name):
			p.self.NotReady("starting")
		case <-p.ctx.Done():
			return
		}
	}
	delays := retry.Policy{Min: 100 * time.Millisecond, Max: 30 * time.Second}.Backoff()
	for {
		started := time.Now()
		err := p.Run(p.ctx, p.self)
		switch {
		case p.ctx.Err() != nil:
			if err != nil && !errors.Is(err, context.Canceled) {
				r.logger.Error("ended with an error while draining", slog.String("part", p.Name), slog.String("error", err.Error()))
			}
			return
		case err == nil:
			p.self.Ready()
			return
		case retry.IsPermanent(err):
			p.self.NotReady(err.Error())
			r.failed <- fmt.Errorf("service %s: %s: %w", r.options.Name, p.Name, err)
			return
		}
		if time.Since(started) >= steady {
			delays.Reset()
		}
		pause := delays.Next()
		p.self.NotReady(err.Error())
		r.restarts.WithLabelValues(p.Name).Inc()
		r.logger.Warn("failed, is started again", slog.String("part", p.Name), slog.String("error", err.Error()), slog.Duration("delay", pause))
		if err := retry.Sleep(p.ctx, pause); err != nil {
			return
		}
	}
}

// drain stops the parts, those that come after others first, and returns the names of those that did
// not end in time. The ops listener is the last to go.
func (r *run) drain() []string {
	timeout := time.NewTimer(r.options.Config.DrainTimeout)
	defer timeout.Stop()
	allStopped := make(chan struct{})
	go func() {
		defer close(allStopped)
		var stopping sync.WaitGroup
		for _, p := range r.parts {
			stopping.Go(func() { r.stop(p) })
		}
		stopping.Wait()
	}()
	var late []string
	select {
	case <-allStopped:
	case <-timeout.C:
		late = r.late()
		r.cancelFinish()
		for _, p := range r.parts {
			p.cancel()
		}
		within(straggle, allStopped)
	}
	r.ops.cancel()
	if !within(straggle, r.ops.stopped) {
		r.cancelFinish()
		within(straggle, r.ops.stopped)
	}
	return late
}

// stop ends a part once nothing needs it any more.
func (r *run) stop(p *running) {
	for _, other := range r.parts {
		if slices.Contains(other.needs(), p.Name) {
			<-other.stopped
		}
	}
	p.cancel()
	<-p.stopped
}

func (r *run) late() []string {
	var names []string
	for _, p := range r.parts {
		select {
		case <-p.stopped:
		default:
			names = append(names, p.Name)
		}
	}
	return names
}

// within reports whether done was closed within d.
func within(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
