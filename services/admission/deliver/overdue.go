package deliver

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/postgres"
)

const (
	// overdueBatch is the number of jobs that are found at once.
	overdueBatch = 500
	// cleanInterval is the time between two deletions of old decisions.
	cleanInterval = time.Minute
	// countInterval is the time between two counts of jobs that wait.
	countInterval = 5 * time.Second
)

// Overdue ends the rounds of controllers that have not answered in time, deletes old decisions, and counts the jobs
// that wait. All replicas may run it.
type Overdue struct {
	Jobs    postgres.Jobs
	Decider *decide.Decider
	Logger  *slog.Logger
	Now     func() time.Time
	// Keep is how long decisions are kept.
	Keep    time.Duration
	Metrics *Metrics
}

// Run works until ctx ends.
func (o Overdue) Run(ctx context.Context, ready func()) error {
	ready()
	var log retry.FailureLog
	var cleaned, counted time.Time
	for ctx.Err() == nil {
		more, err := o.round(ctx)
		if err == nil && time.Since(cleaned) > cleanInterval {
			cleaned = time.Now()
			_, err = o.Jobs.DeleteEnded(ctx, o.Now().Add(-o.Keep), overdueBatch)
		}
		if err == nil && time.Since(counted) > countInterval {
			counted = time.Now()
			err = o.count(ctx)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			o.Logger.LogAttrs(ctx, log.Level(), "ending overdue admissions failed; retrying", logkey.Error(err))
		case more:
			continue
		default:
			log.Reset()
		}
		if retry.Sleep(ctx, interval) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
	return nil
}

func (o Overdue) count(ctx context.Context) error {
	n, err := o.Jobs.Waiting(ctx)
	if err == nil {
		o.Metrics.waiting.Set(float64(n))
	}
	return err
}

// round ends what is overdue, and reports whether there may be more.
func (o Overdue) round(ctx context.Context) (bool, error) {
	ids, err := o.Jobs.Overdue(ctx, o.Now(), overdueBatch)
	if err != nil {
		return false, err
	}
	var failures []error
	for _, id := range ids {
		if err := ignoreConflict(o.expire(ctx, id)); err != nil {
			failures = append(failures, err)
		}
	}
	return len(ids) == overdueBatch, errors.Join(failures...)
}

func (o Overdue) expire(ctx context.Context, jobID int64) error {
	job, controllers, found, err := o.Jobs.Load(ctx, jobID)
	if err != nil || !found {
		return err
	}
	at := o.Now()
	input, expired := decide.Expired(job, at)
	if !expired {
		return nil
	}
	after, ask := o.Decider.Advance(ctx, job, input, controllers, time.Time{}, at)
	if decide.Same(job, after) {
		return nil
	}
	return o.Jobs.Save(ctx, job, after, ask, nil)
}
