package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"lockstep.internal/libs/agentcontrol"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/filter"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/nats"
	"lockstep.internal/services/watcher/report"
)

const (
	// defaultConfigTimeout is the default of Options.ConfigTimeout.
	defaultConfigTimeout = 5 * time.Second
	// catchUpTimeout is how long a full resync waits for a watch that lags behind its lists.
	catchUpTimeout = 2 * time.Second
	catchUpPoll    = 10 * time.Millisecond
	// maxUnread and maxUnreadPages are about what the state service processes in 20 ms.
	maxUnread      = 500
	maxUnreadPages = 6
	// reportTimeout is longer than any transaction of the state service should take.
	reportTimeout = 2 * time.Second
)

// Retries returns the delays between attempts to list, and to run a session.
func Retries() retry.Policy { return retry.Policy{Min: 100 * time.Millisecond, Max: 30 * time.Second} }

// publishRetries returns the delays between attempts to publish. They are short: a stream has no leader for seconds
// after a NATS server has failed.
func publishRetries() retry.Policy {
	return retry.Policy{Min: 100 * time.Millisecond, Max: 2 * time.Second}
}

// ErrVersionsDecreased ends a session: the cluster no longer has the history that the session knows.
var ErrVersionsDecreased = errors.New("resource versions decreased: the cluster was restored from a backup")

// Options of a session. All fields are required unless they name a default.
type Options struct {
	Cluster   *kube.Client
	Publisher *nats.Publisher
	Control   *agentcontrol.Reader
	// Reporter of workspaces and ticks. The reporter of tracked workloads is derived from it.
	Reporter report.Reporter
	// Cause of the first full resync.
	Cause events.ResyncCause
	// Interval between full resyncs until the agent's configuration arrives.
	Interval time.Duration
	// ConfigTimeout is how long the first resync waits for the agent's configuration. Defaults to 5 s.
	ConfigTimeout time.Duration
	// Workloads to track besides workspaces. Defaults to none.
	Workloads *Workloads
	// Window is the maximum number of messages in flight.
	Window int
	// MaxMessage is the largest message in bytes.
	MaxMessage int
	// TickInterval is the time between ticks.
	TickInterval time.Duration
	Clock        clock.WithTicker
	Logger       *slog.Logger
	Tracer       trace.Tracer
	Metrics      *Metrics
	// Drain is done when the session must stop waiting for messages in flight.
	Drain context.Context //nolint:containedctx // it outlives the context of the session
}

// Workloads selects tracked workloads, and the prefixes of the annotations to report.
type Workloads struct {
	Selection   filter.Selection
	Annotations []string
}

// Session is one leader session. Its methods may be called from any goroutine.
type Session struct {
	Options

	// Static after construction.
	pipelines []*pipeline
	window    chan struct{}   // one element for each message in flight
	pace      delivery.Pace   // of all pipelines: they publish to one stream
	ctx       context.Context //nolint:containedctx // of the session, for Run
	cancel    context.CancelCauseFunc

	running  sync.WaitGroup
	revision int // of the configuration, 0 before any; used only by the goroutine of Control
}

// New makes a session that lasts until ctx is done. [Session.Run] runs it once.
func New(ctx context.Context, options Options) *Session {
	options.ConfigTimeout = cmp.Or(options.ConfigTimeout, defaultConfigTimeout)
	s := &Session{
		Options: options, window: make(chan struct{}, options.Window),
		pace: delivery.Pace{ReportTimeout: reportTimeout},
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.pipelines = append(s.pipelines, s.workspaces())
	if options.Workloads != nil {
		s.pipelines = append(s.pipelines, s.workloads(*options.Workloads))
	}
	s.Control.OnObservationsRead = s.observationsRead
	return s
}

// Run reports until the session's context is done or [Session.Cancel] is called. It returns the cause.
func (s *Session) Run() error {
	ctx := s.ctx
	defer s.cancel(nil)
	for _, p := range s.pipelines {
		if err := p.start(ctx); err != nil {
			s.cancel(fmt.Errorf("watch the cluster: %w", err))
		}
	}
	s.running.Go(func() {
		if err := s.Control.Run(ctx, s); err != nil {
			s.cancel(err)
		}
	})
	s.running.Go(func() { s.tick(ctx) })
	s.running.Go(func() {
		var publishing sync.WaitGroup
		for _, p := range s.pipelines {
			publishing.Go(func() { p.publish(ctx) })
		}
		publishing.Wait()
		s.drain()
	})
	s.running.Wait()
	return context.Cause(ctx) //nolint:wrapcheck // the cause of cancel
}

// observationsRead receives the sequence up to which the state service has processed OBSERVED.
func (s *Session) observationsRead(sequence uint64) {
	s.pace.Read(sequence)
	for _, p := range s.pipelines {
		signal(p.wake)
	}
}

// Configure implements [agentcontrol.Handler]. It sets the interval of full resyncs. It also requests a resync of each
// pipeline whose first resync has started.
func (s *Session) Configure(ctx context.Context, cfg events.AgentConfig) <-chan struct{} {
	if cfg.ConfigRevision <= s.revision {
		return nil
	}
	s.revision = cfg.ConfigRevision
	interval := time.Duration(cfg.FullResyncIntervalMs) * time.Millisecond
	s.Logger.InfoContext(ctx, "applied the agent's configuration",
		slog.Int(logkey.Revision, cfg.ConfigRevision), slog.Duration(logkey.FullResyncInterval, interval))
	ended := make([]<-chan struct{}, 0, len(s.pipelines))
	for _, p := range s.pipelines {
		if resynced := p.configure(interval); resynced != nil {
			ended = append(ended, resynced)
		}
	}
	return s.all(ctx, ended)
}

// Resync implements [agentcontrol.Handler]. Every pipeline runs a full resync with the nonce of the request.
func (s *Session) Resync(ctx context.Context, request events.ResyncRequested) <-chan struct{} {
	s.Logger.InfoContext(ctx, "received a request for a full resync",
		slog.String(logkey.Nonce, request.Nonce), slog.String(logkey.Cause, string(request.Cause)))
	ended := make([]<-chan struct{}, 0, len(s.pipelines))
	for _, p := range s.pipelines {
		ended = append(ended, p.request(events.ResyncCauseRequested, request.Nonce))
	}
	return s.all(ctx, ended)
}

// all returns a channel that is closed when all channels are; nil for none.
func (s *Session) all(ctx context.Context, channels []<-chan struct{}) <-chan struct{} {
	switch len(channels) {
	case 0:
		return nil
	case 1:
		return channels[0]
	}
	closed := make(chan struct{})
	s.running.Go(func() {
		for _, c := range channels {
			select {
			case <-c:
			case <-ctx.Done():
				return
			}
		}
		close(closed)
	})
	return closed
}

// tick publishes the time at once and at each interval. A failed tick is not retried: the next one
// supersedes it.
func (s *Session) tick(ctx context.Context) {
	ticker := s.Clock.NewTicker(s.TickInterval)
	defer ticker.Stop()
	for {
		message, err := s.Reporter.Tick(s.Clock.Now())
		if err == nil {
			err = s.publishOnce(ctx, message)
		}
		if err != nil && ctx.Err() == nil {
			s.Logger.DebugContext(ctx, "publish tick failed", logkey.Error(err))
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// sleep waits for the delay before the n-th retry.
func (s *Session) sleep(ctx context.Context, n int) {
	timer := s.Clock.NewTimer(Retries().Delay(n))
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// Cancel ends the session with a cause.
func (s *Session) Cancel(cause error) { s.cancel(cause) }

// Objects returns the number of known objects.
func (s *Session) Objects() int {
	objects := 0
	for _, p := range s.pipelines {
		objects += p.objects()
	}
	return objects
}

// Backlog returns the number of objects to publish or in flight, and how long the oldest waits.
func (s *Session) Backlog() (int, time.Duration) {
	pending, age := 0, time.Duration(0)
	for _, p := range s.pipelines {
		n, oldest := p.pending()
		if pending += n; n > 0 {
			age = max(age, s.Clock.Since(oldest))
		}
	}
	return pending, age
}

// Err returns why the observed state is not up to date, or nil.
func (s *Session) Err() error {
	errs := make([]error, 0, len(s.pipelines))
	for _, p := range s.pipelines {
		errs = append(errs, p.err())
	}
	return errors.Join(errs...)
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
