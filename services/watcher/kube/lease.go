package kube

import (
	"context"
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

// LeaseConfig are the times of the election.
type LeaseConfig struct {
	Duration      time.Duration `yaml:"duration" help:"how long a leader that is silent is believed to lead"`
	RenewDeadline time.Duration `yaml:"renew_deadline" help:"how long a leader tries to renew before it gives up"`
	RetryPeriod   time.Duration `yaml:"retry_period" help:"how often the lease is renewed, and asked for by who is not the leader"`
}

// DefaultLeaseConfig is 15 s, 10 s and 2 s.
func DefaultLeaseConfig() LeaseConfig {
	return LeaseConfig{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
}

// Validate checks that each time leaves room for the next.
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

// Elector takes part in the election of one leader by a Lease.
type Elector struct {
	client *Client
	cfg    LeaseConfig
	lock   *observedLock
}

// Candidacy says which Lease a process stands for.
type Candidacy struct {
	// Namespace and Name of the Lease.
	Namespace, Name string
	// Labels of the namespace, where it is missing and has to be made.
	Labels map[string]string
	// Identity is unique to this process and shown in the Lease.
	Identity string
	// Rewound is called when the Lease's version went back, or another Lease has its name: the cluster was restored from a backup, or made anew. No
	// watch tells that: the API server takes one from a version that is yet to come, and is silent until it has come. It must not block.
	Rewound func()
}

// NewElector makes an elector.
func (c *Client) NewElector(cfg LeaseConfig, candidacy Candidacy) *Elector {
	return &Elector{client: c, cfg: cfg, lock: &observedLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: candidacy.Namespace, Name: candidacy.Name},
			Client:     &versionedLeases{LeasesGetter: c.typed.CoordinationV1(), rewound: candidacy.Rewound},
			LockConfig: resourcelock.ResourceLockConfig{Identity: candidacy.Identity},
		},
		ensure: func(ctx context.Context) error { return c.EnsureNamespace(ctx, candidacy.Namespace, candidacy.Labels) },
		grace:  cfg.RenewDeadline,
		asked:  time.Now(),
	}}
}

// Run stands for election until ctx is done. Each time that it wins it calls lead, with a context that ends when the Lease is
// lost or ctx is done, and tells whether another was seen to lead before. When lead returns the Lease is given back, and Run stands again.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, tookOver bool)) error {
	for ctx.Err() == nil {
		if err := e.stand(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

func (e *Elector) stand(ctx context.Context, lead func(context.Context, bool)) error {
	// The election outlives ctx while lead finishes: the Lease must not be given back before.
	electing, resign := context.WithCancel(e.client.logged(context.WithoutCancel(ctx)))
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

// Holder is who holds the Lease as far as known, empty when nobody does.
func (e *Elector) Holder() string {
	e.lock.mu.Lock()
	defer e.lock.mu.Unlock()
	return e.lock.holder
}

// Err says why Kubernetes has not answered about the Lease for longer than renew_deadline; nil while it does.
func (e *Elector) Err() error {
	e.lock.mu.Lock()
	defer e.lock.mu.Unlock()
	if silence := time.Since(e.lock.asked); e.lock.err != nil && silence > e.lock.grace {
		return fmt.Errorf("kubernetes does not answer for %s: %w", silence.Round(time.Second), e.lock.err)
	}
	return nil
}

// observedLock remembers what the election learns, for others to see.
type observedLock struct {
	resourcelock.Interface

	ensure func(context.Context) error // makes the Lease's namespace
	grace  time.Duration
	won    atomic.Bool

	mu     sync.Mutex
	asked  time.Time // when Kubernetes last answered
	err    error     // of the last request
	holder string
	other  bool // somebody else has been seen to hold it
}

func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.note(record, err)
	return record, raw, err //nolint:wrapcheck // a pass-through
}

func (l *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	if apierrors.IsNotFound(err) { // so is the namespace
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

// RecordEvent is told of the victory before anything else is.
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
		l.asked = time.Now()
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
