package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaseName is the Lease in the agent's namespace that the leader holds.
const LeaseName = "dispatcher"

// releaseTimeout bounds giving the lease back. Where that fails, others have to wait until it runs out.
const releaseTimeout = 5 * time.Second

// ErrLost says that the lease could not be kept.
var ErrLost = errors.New("the lease is lost: it could not be renewed in time")

// Timing of an election.
type Timing struct {
	// Duration that others wait before they take a lease that is not renewed.
	Duration time.Duration
	// RenewDeadline after which a leader that could not renew it stops, less than Duration.
	RenewDeadline time.Duration
	// RetryPeriod between attempts.
	RetryPeriod time.Duration
}

// Election lets one dispatcher of an agent work at a time. All fields are required.
type Election struct {
	Client   *Client
	Agent    int64
	Identity string
	Timing   Timing
	Logger   *slog.Logger
	// Follow is called with the identity of each leader that comes to be.
	Follow func(leader string)
}

// Run waits for the lease, leads while it is held, and gives it back after lead has returned: nobody else can have it before.
// Lead gets two contexts: the first is done when it should come to an end, the second when it must not do anything more, because the
// lease is lost or because finish is done. Run returns when lead has, with its error; with [ErrLost] when the lease was lost; with
// nil when ctx was done.
func (e Election) Run(ctx, finish context.Context, lead func(ctx, work context.Context) error) error {
	if err := e.Client.EnsureHome(ctx, e.Agent); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: Home(e.Agent), Name: LeaseName},
		Client:     e.Client.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
	}
	acquired := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: LeaseName,
		LeaseDuration: e.Timing.Duration, RenewDeadline: e.Timing.RenewDeadline, RetryPeriod: e.Timing.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { acquired <- held },
			OnStoppedLeading: func() {},
			OnNewLeader:      e.Follow,
		},
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", LeaseName, err)
	}
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	quiet := &quietHandler{Handler: e.Logger.Handler(), stopped: electing.Done()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(klog.NewContext(electing, logr.FromSlogHandler(quiet)))
	}()

	var held context.Context
	select {
	case held = <-acquired:
		err = e.hold(ctx, finish, held, lead)
	case <-ctx.Done():
	case <-ended:
		err = ErrLost
	}
	if held != nil && held.Err() != nil && ctx.Err() == nil {
		err = errors.Join(ErrLost, err)
	}
	stop()
	<-ended
	// The lease may have come at the very moment that nobody wanted it any more.
	if releaseErr := release(context.WithoutCancel(ctx), lock); releaseErr != nil {
		e.Logger.WarnContext(ctx, "cannot give the lease back, others have to wait until it runs out", slog.String("error", releaseErr.Error()))
	}
	return err
}

func (e Election) hold(ctx, finish, held context.Context, lead func(ctx, work context.Context) error) error {
	ctx, cancelLead := context.WithCancel(ctx)
	defer cancelLead()
	work, cancelWork := context.WithCancel(finish)
	defer cancelWork()
	defer context.AfterFunc(held, func() {
		cancelLead()
		cancelWork()
	})()
	return lead(ctx, work)
}

// release empties the lease if it is still ours, so that nobody has to wait until it runs out. The last renewal may have been given up by this side only, and come in between: then it is read
// and emptied once more.
func release(ctx context.Context, lock *resourcelock.LeaseLock) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for {
		record, _, err := lock.Get(ctx)
		if err != nil {
			return fmt.Errorf("read the lease: %w", err)
		}
		if record.HolderIdentity != lock.Identity() {
			return nil
		}
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return fmt.Errorf("empty the lease: %w", err)
		}
	}
}

// quietHandler hides that an elector which was told to stop complains of being stopped.
type quietHandler struct {
	slog.Handler

	stopped <-chan struct{}
}

func (h *quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	select {
	case <-h.stopped:
		return false
	default:
		return h.Handler.Enabled(ctx, level)
	}
}

func (h *quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quietHandler{Handler: h.Handler.WithAttrs(attrs), stopped: h.stopped}
}

func (h *quietHandler) WithGroup(name string) slog.Handler {
	return &quietHandler{Handler: h.Handler.WithGroup(name), stopped: h.stopped}
}
