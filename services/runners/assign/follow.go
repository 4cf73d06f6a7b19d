package assign

import (
	"context"
	"fmt"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/services/runners/job"
)

// claimWorkers is how many transactions with claims are under way at once.
const claimWorkers = 4

// Run keeps the jobs in memory and stores claims until ctx is done. It calls ready once all jobs are known. Changes of
// the database's channel have to run, too.
func (a *Assigner) Run(ctx context.Context, ready func()) {
	subscription := a.cfg.Changes.Subscribe()
	defer subscription.Close()
	workers := make(chan struct{}, claimWorkers)
	for range claimWorkers {
		go func() {
			a.runClaims(ctx)
			workers <- struct{}{}
		}()
	}
	defer func() {
		for range claimWorkers {
			<-workers
		}
	}()
	backoff := retry.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second}.Backoff()
	all, ids := true, []int64(nil)
	for {
		if err := a.read(ctx, ids, all); err != nil {
			if ctx.Err() != nil {
				return
			}
			a.cfg.Logger.WarnContext(ctx, "reading the queue of jobs failed; retrying", logkey.Error(err))
			all = true
			if backoff.Wait(ctx) != nil {
				return
			}
			continue
		}
		backoff.Reset()
		ready()
		select {
		case <-subscription.Changed():
		case <-a.retry:
		case <-ctx.Done():
			return
		}
		ids, all = subscription.Take()
	}
}

// read reads the jobs that changed, or all.
func (a *Assigner) read(ctx context.Context, ids []int64, all bool) error {
	a.mu.Lock()
	unknown := a.unknown
	a.unknown = nil
	a.mu.Unlock()
	if len(unknown) > 0 {
		if err := a.restoreStored(ctx, unknown); err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.unknown = append(a.unknown, unknown...)
			return err
		}
	}
	if !all && len(ids) == 0 {
		return nil
	}
	if !all {
		stored, err := a.cfg.Store.Changed(ctx, a.revisions(ids))
		if err != nil {
			return err
		}
		a.put(stored...)
		return nil
	}
	a.mu.Lock()
	before := a.jobs.IDs()
	a.mu.Unlock()
	live, err := a.cfg.Store.Live(ctx)
	if err != nil {
		return fmt.Errorf("read all jobs that wait or run: %w", err)
	}
	a.replace(before, live)
	return nil
}

// revisions returns the revisions of jobs in memory; 0 for jobs that are not. This replica knows its own claims.
func (a *Assigner) revisions(ids []int64) map[int64]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	revisions := make(map[int64]int64, len(ids))
	for _, id := range ids {
		j, _, _ := a.jobs.Job(id)
		revisions[id] = j.Revision
	}
	return revisions
}

// replace puts the live jobs, and forgets those that were known before the live ones were read and are not among them.
func (a *Assigner) replace(before []int64, live []job.Job) {
	found := make(map[int64]bool, len(live))
	for i := range live {
		found[live[i].ID] = true
	}
	a.mu.Lock()
	for _, id := range before {
		if !found[id] {
			a.jobs.Restore(id, nil)
		}
	}
	a.mu.Unlock()
	a.put(live...)
}
