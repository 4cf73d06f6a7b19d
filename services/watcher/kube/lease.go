package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockstep.internal/libs/config"
)

// LeaseConfig is the timing of the leader election.
type LeaseConfig struct {
	Duration      time.Duration `yaml:"duration" help:"time after which a leader that does not renew the lease has lost it"`
	RenewDeadline time.Duration `yaml:"renew_deadline" help:"time after which a leader stops leading if it cannot renew the lease"`
	RetryPeriod   time.Duration `yaml:"retry_period" help:"time between renewals, and between attempts to acquire the lease"`
}

// DefaultLeaseConfig is 15 s, 10 s and 2 s.
func DefaultLeaseConfig() LeaseConfig {
	return LeaseConfig{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
}

// Validate checks the times against each other.
func (c LeaseConfig) Validate() []error {
	var errs []error
	if c.RetryPeriod <= 0 {
		errs = append(errs, config.Invalid("retry_period", "%s is not a positive duration", c.RetryPeriod))
	}
	// The library adds a jitter of up to 1.2 times the period.
	if c.RenewDeadline.Seconds() <= leaderelection.JitterFactor*c.RetryPeriod.Seconds() {
		errs = append(errs, config.Invalid("renew_deadline", "%s must be more than %.1f times retry_period (%s)", c.RenewDeadline, leaderelection.JitterFactor, c.RetryPeriod))
	}
	if c.Duration <= c.RenewDeadline || c.Duration < time.Second {
		errs = append(errs, config.Invalid("duration", "%s must be more than renew_deadline (%s) and at least 1s", c.Duration, c.RenewDeadline))
	}
	return errs
}

// Elector takes part in a leader election by a Lease.
type Elector struct {
	client *Client
	cfg    LeaseConfig
	lock   *observedLock
}

// LeaseOptions select the Lease of an election.
type LeaseOptions struct {
	// Namespace and Name of the Lease.
	Namespace, Name string
	// Labels of the namespace, if it must be created.
	Labels map[string]string
	// Identity of this process, unique, stored in the Lease.
	Identity string
	// VersionDecreased is called when the version of the Lease decreased, or another Lease has its name:
	// the cluster was restored from a backup or recreated. A watch does not report that: the API server
	// accepts a future version and sends nothing until it is reached. It must not block.
	VersionDecreased func()
}

// NewElector makes an elector.
func (c *Client) NewElector(cfg LeaseConfig, options LeaseOptions) *Elector {
	return &Elector{client: c, cfg: cfg, lock: &observedLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: options.Namespace, Name: options.Name},
			Client:     &versionedLeases{LeasesGetter: c.typed.CoordinationV1(), versionDecreased: options.VersionDecreased},
			LockConfig: resourcelock.ResourceLockConfig{Identity: options.Identity},
		},
		ensure:     func(ctx context.Context) error { return c.EnsureNamespace(ctx, options.Namespace, options.Labels) },
		grace:      cfg.RenewDeadline,
		answeredAt: time.Now(),
	}}
}

// Run takes part in the election until ctx is done. Each time this process wins, it calls lead with a
// context that ends when the Lease is lost or ctx is done; tookOver reports whether another process was
// seen to lead before. When lead returns, Run releases the Lease and takes part again.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, tookOver bool)) error {
	for ctx.Err() == nil {
		if err := e.runOnce(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

func (e *Elector) runOnce(ctx context.Context, lead func(context.Context, bool)) error {
	// The election outlives ctx while lead finishes: the Lease must not be released before.
	electing, resign := context.WithCancel(e.client.withLogger(context.WithoutCancel(ctx)))
	defer resign()
	var leading atomic.Bool
	stop := context.AfterFunc(ctx, func() {
		if !leading.Load() {
			resign()
		}
	})
	defer stop()
	e.lock.won.Store(false)
	finished := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            e.lock,
		LeaseDuration:   e.cfg.Duration,
		RenewDeadline:   e.cfg.RenewDeadline,
		RetryPeriod:     e.cfg.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            e.lock.Describe(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				defer close(finished)
				defer resign()
				leading.Store(true)
				held, cancel := context.WithCancel(held)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				lead(held, e.lock.sawOther())
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(electing)
	if e.lock.won.Load() {
		<-finished
	}
	return nil
}

// Holder returns the last known holder of the Lease, empty for none.
func (e *Elector) Holder() string {
	e.lock.mu.Lock()
	defer e.lock.mu.Unlock()
	return e.lock.holder
}

// Err returns why Kubernetes has not answered requests for the Lease for longer than renew_deadline, or nil.
func (e *Elector) Err() error {
	e.lock.mu.Lock()
	defer e.lock.mu.Unlock()
	if silence := time.Since(e.lock.answeredAt); e.lock.err != nil && silence > e.lock.grace {
		return fmt.Errorf("kubernetes has not answered for %s: %w", silence.Round(time.Second), e.lock.err)
	}
	return nil
}

// observedLock records the results of the election's requests.
type observedLock struct {
	resourcelock.Interface

	ensure func(context.Context) error // creates the Lease's namespace
	grace  time.Duration
	won    atomic.Bool

	mu         sync.Mutex
	answeredAt time.Time // when Kubernetes last answered
	err        error     // of the last request
	holder     string
	other      bool // another process was seen to hold it
}

func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.note(record, err)
	return record, raw, err //nolint:wrapcheck // a pass-through
}

func (l *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	if apierrors.IsNotFound(err) { // the namespace is missing
		if err = l.ensure(ctx); err == nil {
			err = l.Interface.Create(ctx, record)
		}
	}
	l.note(&record, err)
	return err //nolint:wrapcheck // a pass-through
}

func (l *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	l.note(&record, err)
	return err //nolint:wrapcheck // a pass-through
}

// RecordEvent runs before lead is called.
func (l *observedLock) RecordEvent(event string) {
	if event == "became leader" {
		l.won.Store(true)
	}
	l.Interface.RecordEvent(event)
}

func (l *observedLock) note(record *resourcelock.LeaderElectionRecord, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	if answered(err) {
		l.answeredAt = time.Now()
	}
	if err != nil || record == nil {
		return
	}
	l.holder = record.HolderIdentity
	l.other = l.other || record.HolderIdentity != "" && record.HolderIdentity != l.Identity()
}

func (l *observedLock) sawOther() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.other
}

// answered reports whether a request reached a working API server: it succeeded, or was refused because
// the Lease is missing or was written by another process.
func answered(err error) bool {
	if err == nil {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && (apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err))
}
