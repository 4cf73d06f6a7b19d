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
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	checkInterval = time.Second
	// lateTimeout is the time that parts have to return after drain_timeout has cancelled
	// everything.
	lateTimeout = time.Second
	// stableAfter is the running time after which the next failure of a part restarts its back-off.
	stableAfter = time.Minute
	// opsName is the name of the ops listener among the addresses.
	opsName = "ops"
)

// ReadyMessage is the message of the log entry when all parts are ready for the first time, with the attribute
// "addresses". Parent processes can wait for it; callers in the same process use [Config.OnReady].
const ReadyMessage = "the service is ready"

// Options of Run. All fields are required.
type Options struct {
	Name    string // of the service, for the log
	Config  Config
	Logger  *slog.Logger
	Metrics *prometheus.Registry // served on /metrics; Run adds the state of the parts
}

// Run runs the parts until ctx ends or one returns a [Permanent] error, then drains. It returns nil
// when all parts stopped in time, the permanent error, or the fault deadline_exceeded, which names
// the parts that did not stop.
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

// running is a running part.
type running struct {
	Part

	handle  *Handle
	ctx     context.Context //nolint:containedctx // ends with the part
	cancel  context.CancelFunc
	stopped chan struct{} // closed when Run of the part has returned for the last time
}

type run struct {
	options  Options
	logger   *slog.Logger
	health   *health
	restarts *prometheus.CounterVec
	refused  *prometheus.CounterVec
	parts    []*running
	ops      *running
	addrs    map[string]string
	failed   chan error // buffered for every part: the first ends the service

	drainCtx    context.Context //nolint:containedctx // Handle.DrainContext of all parts
	cancelDrain context.CancelFunc
}

func checkParts(parts []Part) error {
	byName := map[string]Part{}
	for _, p := range parts {
		if _, twice := byName[p.Name]; twice || p.Name == "" || p.Name == opsName {
			return fmt.Errorf("part name %q is empty, used twice or reserved (%q)", p.Name, opsName)
		}
		byName[p.Name] = p
	}
	for _, p := range parts {
		for _, name := range p.dependencies() {
			if _, exists := byName[name]; !exists {
				return fmt.Errorf("part %s depends on unknown part %q", p.Name, name)
			}
		}
	}
	// A part whose dependencies are all ordered can be ordered. The remaining parts depend on
	// themselves.
	ordered := map[string]bool{}
	for range parts {
		for _, p := range parts {
			missing := func(name string) bool { return !ordered[name] }
			ordered[p.Name] = ordered[p.Name] || !slices.ContainsFunc(p.dependencies(), missing)
		}
	}
	for _, p := range parts {
		if !ordered[p.Name] {
			return fmt.Errorf("part %s depends on itself through StopBefore and StartAfter", p.Name)
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
		Name: "lockstep_part_restarts_total", Help: "Restarts of a part after a failure.",
	}, []string{"part"})
	r.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_http_refused_total",
		Help: "Connections and requests that a listener refused because of a limit, by reason.",
	}, []string{"listener", "reason"})
	for _, counter := range []*prometheus.CounterVec{r.restarts, r.refused} {
		if err := r.options.Metrics.Register(counter); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	r.drainCtx, r.cancelDrain = context.WithCancel(context.WithoutCancel(ctx))
	r.ops = r.add(
		ctx,
		HTTPServer(opsName, r.options.Config.Ops, opsHandler(r.health, r.options.Metrics), HTTPOptions{Logger: r.logger}),
	)
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
		p.handle.listener = &onceListener{Listener: listener}
		r.addrs[p.Name] = listener.Addr().String()
	}
	return nil
}

func (r *run) add(ctx context.Context, p Part) *running {
	started := &running{Part: p, stopped: make(chan struct{})}
	started.ctx, started.cancel = context.WithCancel(context.WithoutCancel(ctx))
	started.handle = &Handle{drain: r.drainCtx, set: func(ready bool, reason string) {
		if p.Name != opsName {
			r.health.setRun(p.Name, ready, reason)
		}
	}, refused: func(reason string) { r.refused.WithLabelValues(p.Name, reason).Inc() }}
	return started
}

// close releases what prepare created. It may be called after a drain.
func (r *run) close() {
	r.cancelDrain()
	for _, p := range append([]*running{r.ops}, r.parts...) {
		p.cancel()
		if p.handle.listener != nil {
			if err := p.handle.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				r.logger.Warn("listener not closed", slog.String(logkey.Part, p.Name), logkey.Error(err))
			}
		}
	}
}

func (r *run) onReady() {
	r.logger.Info(ReadyMessage, slog.Any(logkey.Addresses, r.addrs))
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

	r.logger.InfoContext(ctx, "listening", slog.Any(logkey.Addresses, r.addrs))
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
			r.health.setRun(p.Name, true, "")
			close(p.stopped)
			continue
		}
		go r.supervise(p)
	}

	var failure error
	select {
	case <-ctx.Done():
		r.logger.InfoContext(ctx, "draining", slog.String(logkey.Reason, context.Cause(ctx).Error()),
			slog.Duration(logkey.Timeout, r.options.Config.DrainTimeout))
	case failure = <-r.failed:
		r.logger.ErrorContext(ctx, "stopping after a permanent error", logkey.Error(failure))
	}
	r.health.drain()
	late := r.drain()
	if failure == nil && len(late) > 0 {
		failure = fault.New(errcode.DeadlineExceeded, "service %s: not drained within %s: %s",
			r.options.Name, r.options.Config.DrainTimeout, strings.Join(late, ", "))
	}
	return failure
}

// supervise runs one part and restarts it until it is stopped.
func (r *run) supervise(p *running) {
	defer close(p.stopped)
	for _, name := range p.StartAfter {
		p.handle.NotReady("waits for " + name)
		select {
		case <-r.health.first(name):
			p.handle.NotReady("starting")
		case <-p.ctx.Done():
			return
		}
	}
	backoff := retry.Policy{Min: 100 * time.Millisecond, Max: 30 * time.Second}.Backoff()
	for {
		started := time.Now()
		err := p.Run(p.ctx, p.handle)
		switch {
		case p.ctx.Err() != nil:
			if err != nil && !errors.Is(err, context.Canceled) {
				r.logger.Error("part failed while draining", slog.String(logkey.Part, p.Name), logkey.Error(err))
			}
			return
		case err == nil:
			p.handle.Ready()
			return
		case retry.IsPermanent(err):
			p.handle.NotReady(err.Error())
			r.failed <- fmt.Errorf("service %s: %s: %w", r.options.Name, p.Name, err)
			return
		}
		if time.Since(started) >= stableAfter {
			backoff.Reset()
		}
		pause := backoff.Next()
		p.handle.NotReady(err.Error())
		r.restarts.WithLabelValues(p.Name).Inc()
		r.logger.Warn("part failed, restarting", slog.String(logkey.Part, p.Name),
			slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
		if err := retry.Sleep(p.ctx, pause); err != nil {
			return
		}
	}
}

// drain stops each part before its dependencies and returns the names of those that did not stop in
// time. The ops listener stops last.
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
		r.cancelDrain()
		for _, p := range r.parts {
			p.cancel()
		}
		within(lateTimeout, allStopped)
	}
	r.ops.cancel()
	if !within(lateTimeout, r.ops.stopped) {
		r.cancelDrain()
		within(lateTimeout, r.ops.stopped)
	}
	return late
}

// stop stops a part after the parts that depend on it.
func (r *run) stop(p *running) {
	for _, other := range r.parts {
		if slices.Contains(other.dependencies(), p.Name) {
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
