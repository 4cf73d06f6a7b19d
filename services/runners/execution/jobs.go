package execution

import (
	"cmp"
	"context"
	"time"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/signing"
	"lockstep.internal/services/runners/trace"
)

const (
	// DefaultWatchedInterval is the time between two requests of a runner while somebody watches the trace.
	DefaultWatchedInterval = 3 * time.Second
	// DefaultIdleInterval is that time while nobody does.
	DefaultIdleInterval = 30 * time.Second
	// contactInterval is the least time between two stored contacts of a runner.
	contactInterval = 30 * time.Second
)

// Config of [Jobs]. All fields are required, unless they have a default.
type Config struct {
	Store  Store
	Tokens *Tokens
	Now    func() time.Time
	// TraceLimit is the size from which a trace accepts no more, in bytes. Defaults to [trace.DefaultLimit].
	TraceLimit int64
	// WatchedInterval and IdleInterval default to [DefaultWatchedInterval] and [DefaultIdleInterval].
	WatchedInterval, IdleInterval time.Duration
}

// Jobs serves running jobs to runners. It is safe for concurrent use.
type Jobs struct{ cfg Config }

var _ gitlab.Jobs = (*Jobs)(nil)

// NewJobs returns a server of running jobs.
func NewJobs(cfg Config) *Jobs {
	cfg.TraceLimit = cmp.Or(cfg.TraceLimit, trace.DefaultLimit)
	cfg.WatchedInterval = cmp.Or(cfg.WatchedInterval, DefaultWatchedInterval)
	cfg.IdleInterval = cmp.Or(cfg.IdleInterval, DefaultIdleInterval)
	return &Jobs{cfg}
}

// Authentic implements [gitlab.Jobs].
func (j *Jobs) Authentic(ctx context.Context, ref gitlab.JobRef) error {
	_, err := j.request(ctx, ref)
	return err
}

// Authorize implements [gitlab.Jobs]: one query, and a second one at most every 30 s.
func (j *Jobs) Authorize(ctx context.Context, ref gitlab.JobRef, scope jobtoken.Scope) (gitlab.JobState, error) {
	r, err := j.request(ctx, ref)
	if err != nil {
		return gitlab.JobState{}, err
	}
	s, state, err := j.read(ctx, ref, r)
	if err != nil {
		return state, err
	}
	if err := r.authorize(s, scope); err != nil {
		return state, err
	}
	return j.contacted(ctx, r, s, state)
}

// request checks the signature of the token, without a query.
func (j *Jobs) request(ctx context.Context, ref gitlab.JobRef) (request, error) {
	claims, err := j.cfg.Tokens.Authentic(ctx, ref.Token)
	if err != nil {
		return request{}, err
	}
	if claims.JobID != ref.ID {
		return request{}, notValid()
	}
	return request{claims: claims, hash: signing.Hash(ref.Token), now: j.cfg.Now().UTC()}, nil
}

// read returns the job of a request, and its state if the token is that of the job.
func (j *Jobs) read(ctx context.Context, ref gitlab.JobRef, r request) (Snapshot, gitlab.JobState, error) {
	s, err := j.cfg.Store.Read(ctx, ref.ID)
	if err != nil {
		return Snapshot{}, gitlab.JobState{}, err
	}
	if err := r.owns(s); err != nil {
		return Snapshot{}, gitlab.JobState{}, err
	}
	state, err := j.state(s, r.now)
	return s, state, err
}

// contacted records the contact of a request that is authorized.
func (j *Jobs) contacted(
	ctx context.Context, r request, s Snapshot, state gitlab.JobState,
) (gitlab.JobState, error) {
	at := r.contact(s, contactInterval)
	if at.IsZero() {
		return state, nil
	}
	valid, err := j.cfg.Store.Contact(ctx, s.Job.ID, s.Claim.Number, at)
	switch {
	case err != nil:
		return state, err
	case !valid:
		return gitlab.JobState{}, notValid()
	default:
		return state, nil
	}
}

// state returns the state of the job as its runner gets it.
func (j *Jobs) state(s Snapshot, now time.Time) (gitlab.JobState, error) {
	known, err := status(s.Job.State)
	out := gitlab.JobState{Status: known}
	switch {
	case err != nil || s.Job.State.Final():
	case s.WatchedUntil.After(now):
		out.Interval = j.cfg.WatchedInterval
	default:
		out.Interval = j.cfg.IdleInterval
	}
	return out, err
}
