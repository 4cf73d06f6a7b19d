package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/runners/job"
)

// Admission is the setting whether jobs wait for admission before they wait for a runner.
type Admission struct {
	Enabled bool
	// Timeout of a job that waits. Defaults to [DefaultAdmissionTimeout].
	Timeout time.Duration
}

const (
	// DefaultAdmissionTimeout is how long a job waits for admission.
	DefaultAdmissionTimeout = time.Hour
	// decisionGrace is how long after the deadline a decision still arrives: the admission service reports which
	// controller did not answer.
	decisionGrace = 10 * time.Second
)

// begin lets jobs begin: they wait for admission, or for a runner if nobody admits jobs.
func (g *graph) begin(ctx context.Context, begun []*Attempt) error {
	if len(begun) == 0 {
		return nil
	}
	if g.Admission.Enabled {
		return g.prepare(ctx, begun)
	}
	for _, a := range begun {
		c, err := a.Job.Enqueue(g.now)
		if err != nil {
			return fmt.Errorf("begin job %d: %w", a.Job.ID, err)
		}
		g.change(a, c)
	}
	return nil
}

// prepare lets jobs wait for admission.
func (g *graph) prepare(ctx context.Context, begun []*Attempt) error {
	names := make([]string, len(begun))
	for i, a := range begun {
		names[i] = a.Job.Name
	}
	variables, err := g.Store.Predefined(ctx, g.tx, g.pipeline.ID, names)
	if err != nil {
		return fmt.Errorf("read the variables of pipeline %d: %w", g.pipeline.ID, err)
	}
	for _, a := range begun {
		c, err := a.Job.Prepare(preparationOf(g.pipeline, a.Job, variables[a.Job.Name], g.Admission.deadline(g.now)), g.now)
		if err != nil {
			return fmt.Errorf("begin job %d: %w", a.Job.ID, err)
		}
		g.change(a, c)
	}
	return nil
}

// preparationOf returns what admission needs to know about a job of a pipeline.
func preparationOf(p Pipeline, j job.Job, predefined map[string]string, deadline time.Time) job.Preparation {
	variables := map[string]string{
		"CI_JOB_ID": strconv.FormatInt(j.ID, 10), "CI_PIPELINE_ID": strconv.FormatInt(p.ID, 10),
	}
	maps.Copy(variables, predefined)
	return job.Preparation{
		UserID: p.CreatedBy, Ref: p.Ref, Source: p.Source, Deadline: deadline, Variables: variables,
	}
}

// Preparation returns the preparation of a job that waits for admission, for those who have lost it.
func (s *Scheduler) Preparation(ctx context.Context, tx pgx.Tx, j job.Job) (job.Preparation, error) {
	p, err := s.Store.Lock(ctx, tx, j.PipelineID)
	if err != nil {
		return job.Preparation{}, fmt.Errorf("lock pipeline %d: %w", j.PipelineID, err)
	}
	if p == nil {
		return job.Preparation{}, fmt.Errorf("job %d waits for admission without a pipeline", j.ID)
	}
	variables, err := s.Store.Predefined(ctx, tx, p.ID, []string{j.Name})
	if err != nil {
		return job.Preparation{}, fmt.Errorf("read the variables of job %d: %w", j.ID, err)
	}
	return preparationOf(*p, j, variables[j.Name], s.Admission.deadline(j.PreparingSince)), nil
}

// deadline returns when a job fails that waits since a time.
func (a Admission) deadline(since time.Time) time.Time {
	timeout := a.Timeout
	if timeout == 0 {
		timeout = DefaultAdmissionTimeout
	}
	return since.UTC().Truncate(time.Millisecond).Add(timeout)
}

// Decide applies a decision of admission about a job, and stores what follows from it. It does nothing if the decision
// is about another preparation, or the job no longer waits for admission.
func (s *Scheduler) Decide(ctx context.Context, tx pgx.Tx, jobID int64, d job.Decision) error {
	p, err := s.Store.LockOfJob(ctx, tx, jobID)
	if err != nil {
		return fmt.Errorf("lock the pipeline of job %d: %w", jobID, err)
	}
	if p == nil {
		return nil
	}
	g, err := s.load(ctx, tx, p.ID)
	if err != nil {
		return err
	}
	return g.decide(ctx, g.latest(jobID), d)
}

func (g *graph) decide(ctx context.Context, a *Attempt, d job.Decision) error {
	if a == nil {
		return nil
	}
	changes := a.Job.Decide(d, g.now)
	if len(changes) == 0 {
		return nil
	}
	for _, c := range changes {
		g.change(a, c)
	}
	return g.advance(ctx)
}

// RunAdmission ends the wait of jobs that nobody decides about, until ctx is done. It may run on several replicas. It
// returns an error if the database fails; it may then be called again.
func (s *Scheduler) RunAdmission(ctx context.Context) error {
	interval := checkInterval
	if !s.Admission.Enabled {
		interval = time.Minute // only jobs of the time before, and those of a replica that still runs with admission
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if err := s.EndPreparations(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		timer.Reset(interval)
	}
}

// EndPreparations fails jobs whose deadline has passed. Without admission it lets all jobs go on that wait for it.
func (s *Scheduler) EndPreparations(ctx context.Context) error {
	since := forever
	if s.Admission.Enabled {
		now := s.Now()
		since = now.Add(now.Sub(s.Admission.deadline(now)) - decisionGrace)
	}
	for {
		due, err := s.Store.Preparing(ctx, since, maxDue)
		if err != nil {
			return fmt.Errorf("read jobs that wait for admission: %w", err)
		}
		var failed []error
		for _, id := range due {
			if err := s.endPreparation(ctx, id, since); err != nil {
				s.Logger.WarnContext(ctx, "the wait of a job for admission did not end; it is tried again",
					slog.Int64(logkey.JobID, id), logkey.Error(err))
				failed = append(failed, err)
			}
		}
		if len(failed) > 0 {
			return errors.Join(failed...)
		}
		if len(due) < maxDue {
			return nil
		}
	}
}

// endPreparation ends the wait of a job, unless another replica has done so.
func (s *Scheduler) endPreparation(ctx context.Context, id int64, since time.Time) error {
	return s.ofJob(ctx, id, func(g *graph, a *Attempt) error {
		switch {
		case a == nil || a.Job.State != job.Preparing || a.Job.PreparingSince.After(since):
			return nil
		case !s.Admission.Enabled:
			c, err := a.Job.Enqueue(g.now)
			if err != nil {
				return fmt.Errorf("admit job %d: %w", id, err)
			}
			g.change(a, c)
			return g.advance(ctx)
		case a.Job.PreparingSince.IsZero():
			if err := g.prepare(ctx, []*Attempt{a}); err != nil {
				return err
			}
			return g.store(ctx)
		default:
			return g.decide(ctx, a, job.Decision{
				Preparation: a.Job.Revision, Outcome: job.TimedOut,
				Reason: "admission did not decide until " + s.Admission.deadline(a.Job.PreparingSince).Format(time.RFC3339),
			})
		}
	})
}
