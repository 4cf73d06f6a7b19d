package deliver

import (
	"context"

	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/postgres"
)

// record stores what became of requests until there are no more. What ends while a transaction runs is stored together
// by the next one.
func (d *Dispatcher) record(ctx context.Context) {
	for first := range d.answers {
		answers := []answered{first}
		for more := true; more && len(answers) < batch; {
			select {
			case next, open := <-d.answers:
				if more = open; open {
					answers = append(answers, next)
				}
			default:
				more = false
			}
		}
		d.store(ctx, answers)
	}
}

// store stores answers together. If that fails, it stores each by itself, so that none is held back by another.
func (d *Dispatcher) store(ctx context.Context, answers []answered) {
	limited, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	again, err := d.storeAll(limited, answers)
	if err != nil {
		again = answers
	}
	for _, a := range again {
		if err := d.storeOne(limited, a); err != nil {
			d.failed(ctx, a.Claimed, err)
		}
	}
}

// storeAll returns the answers about jobs that others have changed meanwhile: they are not stored.
func (d *Dispatcher) storeAll(ctx context.Context, answers []answered) (again []answered, err error) {
	var later []postgres.Claimed
	var laterEnded, ended []postgres.Ended
	ids := make([]int64, 0, len(answers))
	for _, a := range answers {
		if a.input == nil {
			later, laterEnded = append(later, a.Claimed), append(laterEnded, a.ended())
			continue
		}
		ids = append(ids, a.JobID)
	}
	if len(later) > 0 {
		if err := d.cfg.Jobs.AwaitCallbacks(ctx, later, laterEnded, d.cfg.Now()); err != nil {
			return nil, err
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	jobs, controllers, err := d.cfg.Jobs.LoadAll(ctx, ids)
	if err != nil {
		return nil, err
	}
	var changes []postgres.Change
	byJob := make(map[int64]answered, len(ids))
	for _, a := range answers {
		if a.input == nil {
			continue
		}
		if _, second := byJob[a.JobID]; second {
			again = append(again, a)
			continue
		}
		byJob[a.JobID] = a
		end := a.ended()
		job, open := jobs[a.JobID]
		if !open {
			ended = append(ended, end)
			continue
		}
		after, ask := d.cfg.Decider.Advance(ctx, job, a.input, controllers, a.retryAfter, a.at)
		if decide.Same(job, after) {
			ended = append(ended, end)
			continue
		}
		changes = append(changes, postgres.Change{Before: job, After: after, Ask: ask, Ended: &end})
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // what was evaluated does not count
	}
	conflicts, err := d.cfg.Jobs.SaveAll(ctx, changes, ended)
	if err != nil {
		return nil, err
	}
	for _, id := range conflicts {
		again = append(again, byJob[id])
	}
	return again, nil
}

func (d *Dispatcher) storeOne(ctx context.Context, a answered) error {
	if a.input == nil {
		claimed, ended := []postgres.Claimed{a.Claimed}, []postgres.Ended{a.ended()}
		return d.cfg.Jobs.AwaitCallbacks(ctx, claimed, ended, d.cfg.Now())
	}
	return Apply(ctx, d.cfg.Jobs, d.cfg.Decider, Input{
		JobID: a.JobID, Input: a.input, RetryAfter: a.retryAfter, At: a.at, With: a.ended().Store,
	})
}
