package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// Scheduler changes pipelines. It is safe for concurrent use.
type Scheduler struct {
	Store Store
	// Now returns the time of changes.
	Now    func() time.Time
	Logger *slog.Logger
	// ServerURL is the address of this installation for the variables of jobs. Optional.
	ServerURL *url.URL
	Limits    Limits
	Admission Admission
}

// LockOfJob locks the pipeline of a job until the end of the transaction. It is called before the job is locked or
// changed. It returns nil for a job without a pipeline, such as one whose pipeline was deleted.
func (s *Scheduler) LockOfJob(ctx context.Context, tx pgx.Tx, jobID int64) error {
	if _, err := s.Store.LockOfJob(ctx, tx, jobID); err != nil {
		return fmt.Errorf("lock the pipeline of job %d: %w", jobID, err)
	}
	return nil
}

// Ended stores what follows from the end of a job, which was stored before in the same transaction, after
// [Scheduler.LockOfJob]. It does nothing for a job that has not ended.
func (s *Scheduler) Ended(ctx context.Context, tx pgx.Tx, ended job.Change) error {
	if !ended.Job.State.Final() {
		return nil
	}
	g, err := s.load(ctx, tx, ended.Job.PipelineID)
	if err != nil || g == nil {
		return err
	}
	if err := g.retryEnded(ctx, ended.Job); err != nil {
		return err
	}
	return g.advance(ctx)
}

// graph is a locked pipeline with the latest attempts of its jobs.
type graph struct {
	*Scheduler

	tx       pgx.Tx
	pipeline Pipeline
	attempts []Attempt
	now      time.Time
	// changes of jobs that are not stored yet.
	changes []job.Change
}

// load locks a pipeline; nil if there is none.
func (s *Scheduler) load(ctx context.Context, tx pgx.Tx, id int64) (*graph, error) {
	p, err := s.Store.Lock(ctx, tx, id)
	if err != nil {
		return nil, fmt.Errorf("lock pipeline %d: %w", id, err)
	}
	if p == nil {
		return nil, nil //nolint:nilnil // no pipeline is no error
	}
	attempts, err := s.Store.Attempts(ctx, tx, id)
	if err != nil {
		return nil, fmt.Errorf("read the jobs of pipeline %d: %w", id, err)
	}
	return &graph{Scheduler: s, tx: tx, pipeline: *p, attempts: attempts, now: s.Now()}, nil
}

func (g *graph) statuses() []pipeline.Status {
	out := make([]pipeline.Status, len(g.attempts))
	for i := range g.attempts {
		out[i] = g.attempts[i].Status()
	}
	return out
}

// latest returns the latest attempt of a job, if that is the one with this id; else nil.
func (g *graph) latest(id int64) *Attempt {
	i := slices.IndexFunc(g.attempts, func(a Attempt) bool { return a.Job.ID == id })
	if i < 0 {
		return nil
	}
	return &g.attempts[i]
}

// attempt returns the latest attempt of a job; nil if there is none.
func (g *graph) attempt(name string) *Attempt {
	i := slices.IndexFunc(g.attempts, func(a Attempt) bool { return a.Job.Name == name })
	if i < 0 {
		return nil
	}
	return &g.attempts[i]
}

// change records a change of the latest attempt of a job.
func (g *graph) change(a *Attempt, c job.Change) {
	a.Job = c.Job
	g.changes = append(g.changes, c)
}

// advance lets jobs begin and skips others, stores all changes, and stores the state of the pipeline.
func (g *graph) advance(ctx context.Context) error {
	if g.pipeline.Canceled {
		if err := g.cancel(ctx, pipeline.Cancel(g.statuses()), 0); err != nil {
			return err
		}
		return g.store(ctx)
	}
	places := make(map[string]*Attempt, len(g.attempts))
	for i := range g.attempts {
		places[g.attempts[i].Job.Name] = &g.attempts[i]
	}
	var begun []*Attempt
	for _, step := range pipeline.Advance(g.statuses()) {
		a := places[step.Name]
		if step.Action == pipeline.ActionBegin {
			begun = append(begun, a)
			continue
		}
		c, err := a.Job.Skip(g.now)
		if err != nil {
			return fmt.Errorf("%s job %q of pipeline %d: %w", step.Action, step.Name, g.pipeline.ID, err)
		}
		g.change(a, c)
	}
	if err := g.begin(ctx, begun); err != nil {
		return err
	}
	return g.store(ctx)
}

// store stores all changes and the state of the pipeline.
func (g *graph) store(ctx context.Context) error {
	if err := g.Store.StoreJobs(ctx, g.tx, g.changes...); err != nil {
		return fmt.Errorf("store the jobs of pipeline %d: %w", g.pipeline.ID, err)
	}
	g.changes = nil
	g.pipeline.State = pipeline.StateOf(g.statuses())
	switch {
	case !g.pipeline.Final():
		g.pipeline.FinishedAt = time.Time{}
	case g.pipeline.FinishedAt.IsZero():
		g.pipeline.FinishedAt = g.now.UTC().Truncate(time.Millisecond)
	}
	if err := g.Store.Update(ctx, g.tx, g.pipeline); err != nil {
		return fmt.Errorf("store the state of pipeline %d: %w", g.pipeline.ID, err)
	}
	return nil
}
