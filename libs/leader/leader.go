// Package leader elects one leader among the replicas of a program by a Kubernetes Lease.
//
// At most one replica leads at a time, as long as the clocks of the machines run at the same speed
// and no process is paused. If a leader cannot renew the Lease, its contexts are canceled before
// another replica can acquire it. A leader that stops releases the Lease after its work has returned,
// so another replica takes over at its next attempt.
//
// A Lease belongs to one installation. Replicas of another one, whose agent has the same id, do not acquire it.
//
// While the API server is down nobody is elected, and [Elector.Err] reports the reason after
// renew_deadline.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"lockstep.internal/libs/logkey"
)

// releaseTimeout bounds the release of the Lease. After a failed release other replicas wait until
// it expires.
const releaseTimeout = 5 * time.Second

var errLost = errors.New("lease lost: it was not renewed in time")

// Options configure an [Elector]. All fields are required.
type Options struct {
	Config Config
	// Leases is the client of the API server.
	Leases coordinationclient.LeasesGetter
	// Namespace and Name of the Lease.
	Namespace, Name string
	// Installation is the value of [LabelInstallation]: the same for all replicas, and different for other systems in
	// the cluster. A Lease of another one is never acquired.
	Installation string
	// Identity of this replica, unique among all. It appears in the Lease.
	Identity string
	// EnsureNamespace creates the namespace when it does not exist.
	EnsureNamespace func(context.Context) error
	Logger          *slog.Logger
}

// Elector takes part in an election. Its methods are safe for concurrent use, but Run must not be
// called twice at once.
type Elector struct {
	options Options
	lock    *lock
}

// New returns an elector that does nothing until Run.
func New(options Options) *Elector {
	return &Elector{options: options, lock: &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: options.Namespace, Name: options.Name},
			Client:     ownLeases{LeasesGetter: options.Leases, installation: options.Installation},
			Labels:     map[string]string{LabelInstallation: options.Installation},
			LockConfig: resourcelock.ResourceLockConfig{Identity: options.Identity},
		},
		ensureNamespace: options.EnsureNamespace,
		answered:        time.Now(),
	}}
}

// Lead is the work of a leader. It must begin to drain when ctx ends, and must stop all work when
// drain ends. Both end when the Lease is lost. tookOver reports whether another replica has held
// the Lease before.
type Lead func(ctx, drain context.Context, tookOver bool) error

// Run waits for the Lease and calls lead, again after each lost Lease, until ctx ends. It releases
// the Lease after lead has returned. It returns the error of lead, except when the Lease was lost.
// drain bounds the work after ctx has ended.
func (e *Elector) Run(ctx, drain context.Context, lead Lead) error {
	for ctx.Err() == nil {
		err := e.runOnce(ctx, drain, lead)
		if errors.Is(err, errLost) {
			e.options.Logger.WarnContext(ctx, "stopped leading", logkey.Error(err))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Elector) runOnce(ctx, drain context.Context, lead Lead) error {
	acquired := make(chan context.Context, 1)
	timing := e.options.Config
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, Name: e.options.Name,
		LeaseDuration: timing.Duration, RenewDeadline: timing.RenewDeadline, RetryPeriod: timing.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { acquired <- held },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", e.options.Name, err)
	}
	// The election outlives ctx while lead stops: the Lease must not be released before.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	log := logr.FromSlogHandler(&electorLog{Handler: e.options.Logger.Handler(), stopped: electing.Done()})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(klog.NewContext(electing, log))
	}()
	var held context.Context
	select {
	case held = <-acquired:
		err = e.lead(ctx, drain, held, lead)
	case <-ctx.Done():
	case <-ended:
		err = errLost
	}
	if held != nil && held.Err() != nil && ctx.Err() == nil {
		err = errors.Join(errLost, err)
	}
	stop()
	<-ended
	// Also when ctx ended before lead was called: the Lease may have been acquired at the same
	// moment.
	if releaseErr := e.lock.release(context.WithoutCancel(ctx)); releaseErr != nil {
		e.options.Logger.WarnContext(ctx, "lease not released; other replicas wait until it expires",
			logkey.Error(releaseErr))
	}
	return err
}

func (e *Elector) lead(ctx, drain, held context.Context, lead Lead) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	drain, cancelDrain := context.WithCancel(drain)
	defer cancelDrain()
	defer context.AfterFunc(held, func() {
		cancel()
		cancelDrain()
	})()
	e.lock.mu.Lock()
	tookOver := e.lock.sawOther
	e.lock.mu.Unlock()
	return lead(ctx, drain, tookOver)
}

// Holder returns the identity of the current leader as far as known, empty when there is none.
func (e *Elector) Holder() string {
	e.lock.mu.Lock()
	defer e.lock.mu.Unlock()
	return e.lock.holder
}

// Err is a health check: an error when the API server has not answered for longer than
// renew_deadline, or when the Lease belongs to another installation.
func (e *Elector) Err() error {
	e.lock.mu.Lock()
	defer e.lock.mu.Unlock()
	if errors.Is(e.lock.err, errOtherInstallation) {
		return e.lock.err
	}
	if silence := time.Since(e.lock.answered); e.lock.err != nil && silence > e.options.Config.RenewDeadline {
		return fmt.Errorf("the Kubernetes API server has not answered for %s: %w",
			silence.Round(time.Second), e.lock.err)
	}
	return nil
}

// electorLog logs the info messages of client-go at level debug, and drops its messages after the stop.
type electorLog struct {
	slog.Handler

	stopped <-chan struct{}
}

func (h *electorLog) Enabled(ctx context.Context, level slog.Level) bool {
	select {
	case <-h.stopped:
		return false
	default:
		return h.Handler.Enabled(ctx, lower(level))
	}
}

func (h *electorLog) Handle(ctx context.Context, record slog.Record) error {
	select {
	case <-h.stopped: // client-go logs errors without asking Enabled
		return nil
	default:
	}
	record.Level = lower(record.Level)
	return h.Handler.Handle(ctx, record) //nolint:wrapcheck // as the wrapped handler
}

func (h *electorLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &electorLog{Handler: h.Handler.WithAttrs(attrs), stopped: h.stopped}
}

func (h *electorLog) WithGroup(name string) slog.Handler {
	return &electorLog{Handler: h.Handler.WithGroup(name), stopped: h.stopped}
}

func lower(level slog.Level) slog.Level {
	if level >= slog.LevelWarn {
		return level
	}
	return min(level, slog.LevelDebug)
}

// NewIdentity returns an identity for this process: the host name and a random id. A restarted
// process has another one.
func NewIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + uuid.NewString()
}
