package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/pipeline"
)

// forever is later than every delay.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// CancelPipeline cancels all jobs that have not ended. Jobs with a runner are canceling until it reports their end. A
// pipeline that has ended is failed_precondition. One that is being canceled stays as it is.
func (s *Scheduler) CancelPipeline(ctx context.Context, id, userID int64) error {
	return s.inPipeline(ctx, id, func(g *graph) error {
		if g.pipeline.Final() {
			return fault.New(errcode.FailedPrecondition, "pipeline %d is %s: only one that has not ended can be canceled",
				id, g.pipeline.State.State)
		}
		g.pipeline.Canceled = true
		if _, err := s.Store.Undelay(ctx, g.tx, id, forever); err != nil {
			return fmt.Errorf("remove delays of pipeline %d: %w", id, err)
		}
		if err := g.cancel(ctx, pipeline.Cancel(g.statuses()), userID); err != nil {
			return err
		}
		return g.store(ctx)
	})
}

// CancelJob cancels one job, and does what follows from it. A job that has ended is failed_precondition.
func (s *Scheduler) CancelJob(ctx context.Context, id, userID int64) error {
	return s.ofJob(ctx, id, func(g *graph, a *Attempt) error {
		if a == nil || a.Job.State.Final() {
			return fault.New(errcode.FailedPrecondition, "job %d has ended: only one that has not can be canceled", id)
		}
		step := pipeline.Step{Name: a.Job.Name, Action: pipeline.ActionCancel}
		if err := g.cancel(ctx, []pipeline.Step{step}, userID); err != nil {
			return err
		}
		return g.advance(ctx)
	})
}

// cancel cancels the jobs of steps. A runner may take one of them meanwhile: they are locked and read again.
func (g *graph) cancel(ctx context.Context, steps []pipeline.Step, userID int64) error {
	if len(steps) == 0 {
		return nil
	}
	places := make(map[int64]*Attempt, len(steps))
	ids := make([]int64, 0, len(steps))
	canceled := make(map[string]bool, len(steps))
	for _, step := range steps {
		canceled[step.Name] = true
	}
	for i := range g.attempts {
		if a := &g.attempts[i]; canceled[a.Job.Name] {
			places[a.Job.ID] = a
			ids = append(ids, a.Job.ID)
		}
	}
	locked, err := g.Store.LockJobs(ctx, g.tx, ids)
	if err != nil {
		return fmt.Errorf("lock the jobs of pipeline %d: %w", g.pipeline.ID, err)
	}
	for _, j := range locked {
		if j.State.Final() {
			places[j.ID].Job = j
			continue
		}
		c, err := j.Cancel(userID, g.now)
		if err != nil {
			return fmt.Errorf("cancel a job of pipeline %d: %w", g.pipeline.ID, err)
		}
		if c.Event == "" {
			places[j.ID].Job = j
			continue
		}
		g.change(places[j.ID], c)
	}
	return nil
}

// inPipeline changes a locked pipeline. One that does not exist is not_found.
func (s *Scheduler) inPipeline(ctx context.Context, id int64, change func(g *graph) error) error {
	return s.Store.InTx(ctx, func(tx pgx.Tx) error {
		if err := s.Store.LockOrganizationOf(ctx, tx, id, 0); err != nil {
			return fmt.Errorf("change pipeline %d: %w", id, err)
		}
		g, err := s.load(ctx, tx, id)
		if err == nil && g == nil {
			return fault.New(errcode.NotFound, "pipeline %d does not exist", id)
		}
		if err != nil {
			return err
		}
		return change(g)
	})
}

// ofJob changes the locked pipeline of a job. The attempt is nil if the job is not the latest one.
func (s *Scheduler) ofJob(ctx context.Context, id int64, change func(g *graph, a *Attempt) error) error {
	return s.Store.InTx(ctx, func(tx pgx.Tx) error {
		if err := s.Store.LockOrganizationOf(ctx, tx, 0, id); err != nil {
			return fmt.Errorf("change job %d: %w", id, err)
		}
		p, err := s.Store.LockOfJob(ctx, tx, id)
		if err != nil {
			return fmt.Errorf("lock the pipeline of job %d: %w", id, err)
		}
		if p == nil {
			return fault.New(errcode.NotFound, "job %d does not exist", id)
		}
		g, err := s.load(ctx, tx, p.ID)
		if err != nil {
			return err
		}
		return change(g, g.latest(id))
	})
}
