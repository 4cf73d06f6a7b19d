package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// retryEnded replaces a job that failed by a new attempt, if its policy asks for it. The attempt is created at once and
// begins after the delay.
func (g *graph) retryEnded(ctx context.Context, ended job.Job) error {
	a := g.attempt(ended.Name)
	if a == nil || a.Job.ID != ended.ID || ended.State != job.Failed || g.pipeline.Canceled {
		return nil
	}
	runs, err := g.Store.CountRuns(ctx, g.tx, g.pipeline.ID, ended.Name)
	if err != nil {
		return fmt.Errorf("count the attempts of job %d: %w", ended.ID, err)
	}
	if !pipeline.ShouldRetry(ended.Policy, runs, ended.Reason) {
		return nil
	}
	if err := g.replace(ctx, []string{ended.Name}); err != nil {
		return err
	}
	a.Delayed = true
	if err := g.Store.Delay(ctx, g.tx, a.Job, g.now.Add(pipeline.RetryDelay(runs))); err != nil {
		return fmt.Errorf("delay job %d: %w", a.Job.ID, err)
	}
	return nil
}

// replace makes a new attempt of each job.
func (g *graph) replace(ctx context.Context, names []string) error {
	ids, err := g.Store.NewIDs(ctx, g.tx, len(names))
	if err != nil {
		return fmt.Errorf("get ids for new attempts: %w", err)
	}
	wanted := make(map[string]int64, len(names))
	for i, name := range names {
		wanted[name] = ids[i]
	}
	for i := range g.attempts {
		a := &g.attempts[i]
		id, ok := wanted[a.Job.Name]
		if !ok {
			continue
		}
		replaced, created, err := a.Job.Retry(id, g.now)
		if err != nil {
			return fmt.Errorf("retry a job of pipeline %d: %w", g.pipeline.ID, err)
		}
		g.change(a, replaced)
		g.change(a, created)
		a.Delayed = false
	}
	return nil
}

// RetryJob replaces a job that succeeded, failed or was canceled by a new attempt, whose id it returns. The jobs that
// were skipped because of it get new attempts too and wait for it again. Another job is failed_precondition.
func (s *Scheduler) RetryJob(ctx context.Context, id int64) (int64, error) {
	var created int64
	err := s.ofJob(ctx, id, func(g *graph, a *Attempt) error {
		if a == nil {
			return fault.New(errcode.FailedPrecondition, "job %d was retried before: retry the job that replaced it", id)
		}
		attempts, err := pipeline.Retry(g.statuses(), a.Job.Name)
		if err != nil {
			if refused, ok := errors.AsType[*pipeline.NotRetryableError](err); ok {
				return fault.Wrap(err, errcode.FailedPrecondition, "%v", refused)
			}
			return fmt.Errorf("retry job %d: %w", id, err)
		}
		if err := g.again(ctx, attempts); err != nil {
			return err
		}
		created = a.Job.ID
		return nil
	})
	if err != nil {
		return 0, err
	}
	return created, nil
}

// RetryPipeline retries all jobs that failed or were canceled, if that is not allowed. A pipeline without such jobs is
// failed_precondition.
func (s *Scheduler) RetryPipeline(ctx context.Context, id int64) error {
	return s.inPipeline(ctx, id, func(g *graph) error {
		attempts := pipeline.RetryFailed(g.statuses())
		if len(attempts.Retried) == 0 {
			return fault.New(errcode.FailedPrecondition, "pipeline %d has no job to retry: none failed or was canceled", id)
		}
		return g.again(ctx, attempts)
	})
}

func (g *graph) again(ctx context.Context, attempts pipeline.Attempts) error {
	if err := g.replace(ctx, slices.Concat(attempts.Retried, attempts.Reset)); err != nil {
		return err
	}
	g.pipeline.Canceled = false
	return g.advance(ctx)
}
