package runners

import (
	"context"
	"time"

	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/wire"
)

// waiting gives the queue the runners of the registry.
type waiting struct {
	registry *runner.Registry
	places   registration.Places
	now      func() time.Time
}

// Identify implements [assign.Runners].
func (w waiting) Identify(ctx context.Context, token string) (assign.Runner, error) {
	r, err := w.registry.Authenticate(ctx, token)
	if err != nil {
		return assign.Runner{}, err
	}
	return assign.Runner{ID: r.ID, MaximumTimeout: r.MaximumTimeout, Matcher: matcher{r, w}}, nil
}

// Manager implements [assign.Runners].
func (w waiting) Manager(ctx context.Context, runnerID int64, request wire.JobRequest) (int64, error) {
	info := runner.Info{
		Version: request.Info.Version, Revision: request.Info.Revision, Platform: request.Info.Platform,
		Architecture: request.Info.Architecture, Executor: request.Info.Executor,
	}
	return w.registry.Manager(ctx, runnerID, request.SystemID, info, "")
}

// Changed implements [assign.Runners].
func (w waiting) Changed() <-chan struct{} { return w.registry.Changed() }

// matcher tells the queue which jobs a runner takes.
type matcher struct {
	runner *runner.Runner
	in     waiting
}

// RunnerID implements queue.Matcher.
func (m matcher) RunnerID() int64 { return m.runner.ID }

// TakesClass implements queue.Matcher.
func (m matcher) TakesClass(tags []string, protected bool) bool {
	return m.runner.TakesClass(tags, protected, m.in.now())
}

// TakesProject implements queue.Matcher.
func (m matcher) TakesProject(projectID int64) bool {
	if m.runner.Type == runner.InstanceType {
		return true
	}
	place, found := m.in.places.Place(projectID)
	return found && m.runner.TakesProject(projectID, place)
}

// picks is the store of the queue.
type picks struct {
	postgres.Picks

	executions postgres.Executions
}

// Fail implements [assign.Store] and the store of package stuck: it ends a job, if it has not changed, and stores what
// follows.
func (p picks) Fail(ctx context.Context, j job.Job, reason job.FailureReason) error {
	return p.executions.UpdateJob(ctx, j.ID, func(s execution.Snapshot) (execution.Decision, error) {
		if s.Job.Revision != j.Revision {
			return execution.Decision{}, nil
		}
		failed, err := s.Job.Fail(reason, p.Now())
		return execution.Decision{Change: &failed}, err
	})
}

// PendingSince is part of the store of package stuck.
func (p picks) PendingSince(ctx context.Context, since time.Time, after int64, limit int) ([]job.Job, error) {
	return postgres.PendingSince(ctx, p.Pool, since, after, limit)
}

// traces gives the API the output of jobs.
type traces struct{ execution.TraceStore }

// ReadTrace implements the traces of package api.
func (t traces) ReadTrace(ctx context.Context, jobID, offset int64, limit int) ([]byte, int64, error) {
	part, err := t.TraceStore.ReadTrace(ctx, jobID, offset, limit)
	return part.Data, part.Size, err
}

var _ gitlab.Queue = (*assign.Assigner)(nil)
