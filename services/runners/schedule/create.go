package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// Create creates a pipeline and lets its first jobs begin. Nothing is stored after an error. Faults: invalid_argument
// with every problem of the file, already_exists for another request with the same id, quota_exceeded for a project
// with too many pipelines.
func (s *Scheduler) Create(ctx context.Context, r Request) (Pipeline, error) {
	limits := s.Limits.withDefaults()
	r.FileName = cmp.Or(r.FileName, ".gitlab-ci.yml")
	r.ProjectPath = cmp.Or(r.ProjectPath, "project-"+strconv.FormatInt(r.ProjectID, 10))
	if err := r.validate(limits); err != nil {
		return Pipeline{}, err
	}
	key, err := r.key()
	if err != nil {
		return Pipeline{}, err
	}
	p := Pipeline{
		ProjectID: r.ProjectID, OrganizationID: r.OrganizationID, Ref: r.Ref, Source: r.Source, Protected: r.Protected,
		CreatedBy: r.UserID, CreatedAt: s.Now().UTC().Truncate(time.Millisecond),
	}
	plan, err := s.plan(ctx, r, &p, limits)
	if err != nil {
		return Pipeline{}, err
	}
	err = s.Store.InTx(ctx, func(tx pgx.Tx) error {
		if err := s.Store.LockOrganization(ctx, tx, r.OrganizationID); err != nil {
			return fmt.Errorf("create a pipeline: %w", err)
		}
		first, err := s.first(ctx, tx, key, limits)
		if err != nil {
			return err
		}
		if first != nil {
			p = *first
			return nil
		}
		return s.insert(ctx, tx, &p, key, plan)
	})
	if err != nil {
		return Pipeline{}, err
	}
	return p, nil
}

// plan gives the pipeline an id and returns its jobs.
func (s *Scheduler) plan(ctx context.Context, r Request, p *Pipeline, limits Limits) ([]pipeline.Job, error) {
	file, err := cifile.Parse(r.FileName, r.File, limits.File)
	if err != nil {
		return nil, faultOfFile(err)
	}
	if p.ID, err = s.Store.NewPipelineID(ctx); err != nil {
		return nil, fmt.Errorf("get an id for a pipeline: %w", err)
	}
	plan, err := pipeline.NewPlan(file, pipeline.Input{
		PipelineID: p.ID, Source: r.Source,
		Project: pipeline.Project{ID: r.ProjectID, Path: r.ProjectPath},
		Ref:     pipeline.Ref{Name: r.Ref, Protected: r.Protected},
		// The service knows no names of users: events have none.
		User:      pipeline.User{ID: r.UserID, Login: "user-" + strconv.FormatInt(r.UserID, 10)},
		ServerURL: s.ServerURL, Variables: r.Variables, Limits: limits.File,
	})
	if err != nil {
		return nil, faultOfFile(err)
	}
	statuses := make([]pipeline.Status, len(plan.Jobs))
	for i := range plan.Jobs {
		statuses[i].Node = plan.Jobs[i].Node
	}
	for i := range plan.Jobs {
		plan.Jobs[i].Definition.ArtifactJobs = pipeline.ArtifactJobs(statuses, plan.Jobs[i].Name)
	}
	return plan.Jobs, nil
}

// faultOfFile returns the problems of a file as a fault.
func faultOfFile(err error) error {
	if problems, ok := errors.AsType[*cifile.Error](err); ok {
		return fault.Wrap(err, errcode.InvalidArgument, "%v", problems).With("field", "file")
	}
	return fmt.Errorf("plan a pipeline: %w", err)
}

// first locks the project. It returns the pipeline of the first request with this key, or nil if a new pipeline may be
// created.
func (s *Scheduler) first(ctx context.Context, tx pgx.Tx, key RequestKey, limits Limits) (*Pipeline, error) {
	if err := s.Store.LockProject(ctx, tx, key.ProjectID); err != nil {
		return nil, fmt.Errorf("lock project %d: %w", key.ProjectID, err)
	}
	if key.ID != "" {
		found, hash, err := s.Store.Requested(ctx, tx, key)
		if err != nil {
			return nil, fmt.Errorf("find the pipeline of an earlier request: %w", err)
		}
		if found != nil && hash != key.Hash {
			return nil, fault.New(errcode.AlreadyExists,
				"request_id %q: pipeline %d was created with it by another request: use a new id", key.ID, found.ID).
				With("field", "request_id")
		}
		if found != nil {
			return found, nil
		}
	}
	unfinished, err := s.Store.CountUnfinished(ctx, tx, key.ProjectID)
	if err != nil {
		return nil, fmt.Errorf("count the pipelines of project %d: %w", key.ProjectID, err)
	}
	if unfinished >= limits.Unfinished {
		return nil, fault.New(errcode.QuotaExceeded,
			"project %d has %d pipelines that have not ended: wait until one ended, or cancel one", key.ProjectID, unfinished)
	}
	return nil, nil //nolint:nilnil // no earlier pipeline is no error
}

// insert stores a pipeline with its jobs, of which the first begin.
func (s *Scheduler) insert(ctx context.Context, tx pgx.Tx, p *Pipeline, key RequestKey, plan []pipeline.Job) error {
	p.State = pipeline.State{State: job.Created}
	if err := s.Store.Insert(ctx, tx, *p, key, plan); err != nil {
		return fmt.Errorf("store pipeline %d: %w", p.ID, err)
	}
	ids, err := s.Store.NewIDs(ctx, tx, len(plan))
	if err != nil {
		return fmt.Errorf("get ids for jobs: %w", err)
	}
	g := &graph{Scheduler: s, tx: tx, pipeline: *p, attempts: make([]Attempt, len(plan)), now: s.Now()}
	for i := range plan {
		planned := &plan[i]
		g.attempts[i].Node = planned.Node
		g.change(&g.attempts[i], job.Create(job.Job{
			ID: ids[i], PipelineID: p.ID, ProjectID: p.ProjectID, OrganizationID: p.OrganizationID,
			Name: planned.Name, Stage: planned.Stage, Tags: planned.Tags, Protected: planned.Protected,
			Timeout: planned.Timeout, Policy: planned.Policy,
		}, g.now))
	}
	if err := g.advance(ctx); err != nil {
		return err
	}
	*p = g.pipeline
	return nil
}
