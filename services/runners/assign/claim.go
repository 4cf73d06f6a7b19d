package assign

import (
	"context"
	"fmt"
	"log/slog"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

// maxClaims is how many claims are stored in one transaction at most.
const maxClaims = 64

// pick is a job that was taken from memory for a request.
type pick struct {
	job     job.Job
	runner  Runner
	manager int64
	// result gets exactly one value.
	result chan claimed
}

// claimed is what became of a pick. Without an error and an answer, somebody else has the job.
type claimed struct {
	answer *wire.Job
	job    job.Job
	err    error
}

// claim claims a job. It returns nil without an error if somebody else has it, or if it was given back because the
// request has ended.
func (a *Assigner) claim(ctx context.Context, next job.Job, runner Runner, manager int64) (*wire.Job, error) {
	p := &pick{job: next, runner: runner, manager: manager, result: make(chan claimed, 1)}
	select {
	case a.claims <- p:
	case <-ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		a.restore(next.ID, &next)
		return nil, nil //nolint:nilnil // no job is no error
	}
	// A claim that was begun is not given up: it would not be known whether it is stored.
	got := <-p.result
	if got.err != nil || got.answer == nil {
		return nil, got.err
	}
	if ctx.Err() == nil {
		return got.answer, nil
	}
	if err := a.cfg.Store.Release(context.WithoutCancel(ctx), got.job); err != nil {
		a.cfg.Logger.WarnContext(ctx, "a job that nobody waits for was not released; it is released later",
			slog.Int64(logkey.JobID, got.job.ID), logkey.Error(err))
	}
	return nil, nil //nolint:nilnil // no job is no error
}

// runClaims stores claims until ctx is done. Several may run.
func (a *Assigner) runClaims(ctx context.Context) {
	for {
		var picks []*pick
		select {
		case p := <-a.claims:
			picks = append(picks, p)
		case <-ctx.Done():
			return
		}
	gather:
		for len(picks) < maxClaims {
			select {
			case p := <-a.claims:
				picks = append(picks, p)
			default:
				break gather
			}
		}
		// Whoever waits for the result is drained first.
		a.store(context.WithoutCancel(ctx), picks)
	}
}

// store claims the jobs of picks and sends their results.
func (a *Assigner) store(ctx context.Context, picks []*pick) {
	results, err := a.storeAll(ctx, picks)
	if err != nil {
		a.cfg.Logger.WarnContext(ctx, "claiming jobs failed", logkey.Error(err))
		a.refresh(ctx, picks)
	}
	for _, p := range picks {
		if err != nil {
			p.result <- claimed{err: err}
			continue
		}
		p.result <- results[p.job.ID]
	}
}

func (a *Assigner) storeAll(ctx context.Context, picks []*pick) (map[int64]claimed, error) {
	jobs := make([]job.Job, len(picks))
	for i, p := range picks {
		jobs[i] = p.job
	}
	materials, err := a.cfg.Store.Materials(ctx, jobs)
	if err != nil {
		return nil, fmt.Errorf("read the definitions of jobs: %w", err)
	}
	results := make(map[int64]claimed, len(picks))
	var claims []Claim
	for _, p := range picks {
		material := materials[p.job.ID]
		if material.Definition == nil {
			results[p.job.ID] = claimed{err: a.fail(ctx, p.job)}
			continue
		}
		claim, answer, err := a.prepare(p, material)
		if err != nil {
			return nil, err
		}
		claims = append(claims, claim)
		results[p.job.ID] = claimed{answer: &answer, job: claim.Change.Job}
	}
	if len(claims) == 0 {
		return results, nil
	}
	stored, err := a.cfg.Store.Claim(ctx, claims)
	if err != nil {
		return nil, fmt.Errorf("claim %d jobs: %w", len(claims), err)
	}
	a.settle(ctx, claims, stored, results)
	return results, nil
}

// prepare returns the claim of a pick and the answer if it is stored.
func (a *Assigner) prepare(p *pick, material Material) (Claim, wire.Job, error) {
	change, err := p.job.Take(job.Claim{
		RunnerID: p.runner.ID, ManagerID: p.manager, MaximumTimeout: p.runner.MaximumTimeout,
	}, a.cfg.Now())
	if err != nil {
		return Claim{}, wire.Job{}, errOf(p.job, "claim", err)
	}
	ids := make([]int64, len(material.Dependencies))
	for i, d := range material.Dependencies {
		ids[i] = d.JobID
	}
	token, err := a.cfg.Tokens.Issue(change.Job, ids)
	if err != nil {
		return Claim{}, wire.Job{}, errOf(p.job, "make a token for", err)
	}
	answer := a.cfg.Payloads.Payload(change.Job, material, token.Value)
	return Claim{Change: change, TokenHash: token.Hash, ExpiresAt: token.ExpiresAt}, answer, nil
}

// settle puts the jobs that were claimed into the queue, and asks for the state of the others.
func (a *Assigner) settle(ctx context.Context, claims []Claim, stored map[int64]bool, results map[int64]claimed) {
	var lost []*pick
	a.mu.Lock()
	for _, c := range claims {
		if stored[c.Change.Job.ID] {
			a.jobs.Put(c.Change.Job)
			continue
		}
		delete(results, c.Change.Job.ID)
		lost = append(lost, &pick{job: c.Change.Job})
	}
	a.mu.Unlock()
	a.cfg.Metrics.claimed(len(claims)-len(lost), len(lost))
	if len(lost) > 0 {
		a.refresh(ctx, lost)
	}
}

// fail ends a job whose definition cannot be read.
func (a *Assigner) fail(ctx context.Context, j job.Job) error {
	a.cfg.Logger.ErrorContext(ctx, "the definition of a job cannot be read: the job fails", slog.Int64(logkey.JobID, j.ID))
	if err := a.cfg.Store.Fail(ctx, j, job.DataIntegrity); err != nil {
		a.refresh(ctx, []*pick{{job: j}})
		return errOf(j, "fail", err)
	}
	return nil
}

// refresh replaces what is known of jobs by what is stored, at once or when the database answers again.
func (a *Assigner) refresh(ctx context.Context, picks []*pick) {
	ids := make([]int64, len(picks))
	for i, p := range picks {
		ids[i] = p.job.ID
	}
	if err := a.restoreStored(ctx, ids); err != nil {
		a.cfg.Logger.WarnContext(ctx, "reading jobs failed; they are read again", logkey.Error(err))
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unknown = append(a.unknown, ids...)
		select {
		case a.retry <- struct{}{}:
		default:
		}
	}
}

// restoreStored replaces what is known of jobs by what is stored.
func (a *Assigner) restoreStored(ctx context.Context, ids []int64) error {
	stored, err := a.cfg.Store.Read(ctx, ids)
	if err != nil {
		return fmt.Errorf("read %d jobs: %w", len(ids), err)
	}
	found := make(map[int64]*job.Job, len(stored))
	for i := range stored {
		found[stored[i].ID] = &stored[i]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		a.restore(id, found[id])
	}
	return nil
}
