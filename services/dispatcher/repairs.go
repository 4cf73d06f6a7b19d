package dispatcher

import (
	"context"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/queue"
)

// defaultRepairInterval holds until the agent's configuration is heard.
const defaultRepairInterval = time.Hour

// repairs decides when everything is gone through once more: when the control plane asks for a full resync, and as often as the agent is configured
// to do one by itself. Asking never blocks, and what is asked while it is begun counts once.
type repairs struct {
	clock    queue.Clock
	begin    func(ctx context.Context, cause string)
	asked    chan string        // the last cause
	interval chan time.Duration // the last one
}

func newRepairs(clock queue.Clock, begin func(ctx context.Context, cause string)) *repairs {
	return &repairs{clock: clock, begin: begin, asked: make(chan string, 1), interval: make(chan time.Duration, 1)}
}

func (r *repairs) configure(cfg events.AgentConfig) {
	last(r.interval, time.Duration(cfg.FullResyncIntervalMs)*time.Millisecond)
}

func (r *repairs) ask(request events.ResyncRequested) { last(r.asked, string(request.Cause)) }

// last leaves only the newest value in a channel that has one writer and room for one.
func last[T any](channel chan T, value T) {
	select {
	case <-channel:
	default:
	}
	channel <- value
}

// run begins repairs until ctx is done. The time counts from the last one, and from the start, when everything is applied anyway.
func (r *repairs) run(ctx context.Context) error {
	interval, since := defaultRepairInterval, r.clock.Now()
	for {
		timer, stop := r.clock.After(max(0, since.Add(interval).Sub(r.clock.Now())))
		select {
		case <-ctx.Done():
			stop()
			return nil
		case interval = <-r.interval:
		case cause := <-r.asked:
			since = r.clock.Now()
			r.begin(ctx, cause)
		case <-timer:
			since = r.clock.Now()
			r.begin(ctx, "interval")
		}
		stop()
	}
}
