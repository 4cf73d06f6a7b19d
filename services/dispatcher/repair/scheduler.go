package repair

import (
	"context"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// defaultInterval applies until the agent's configuration arrives.
const defaultInterval = time.Hour

// Scheduler decides when every workspace is applied again: on a resync request of the control plane and at the
// configured interval. Configure and Resync never block. Requests that arrive while start runs are merged into one.
// It is the handler of control messages.
type Scheduler struct {
	start     func(ctx context.Context, cause string)
	requested chan string        // the last cause
	interval  chan time.Duration // the last interval
}

// NewScheduler returns a Scheduler that does nothing until Run. It calls start for each repair.
func NewScheduler(start func(ctx context.Context, cause string)) *Scheduler {
	return &Scheduler{start: start, requested: make(chan string, 1), interval: make(chan time.Duration, 1)}
}

// Configure implements agentcontrol.Handler.
func (r *Scheduler) Configure(_ context.Context, cfg events.AgentConfig) <-chan struct{} {
	replace(r.interval, time.Duration(cfg.FullResyncIntervalMs)*time.Millisecond)
	return nil
}

// Resync implements agentcontrol.Handler.
func (r *Scheduler) Resync(_ context.Context, request events.ResyncRequested) <-chan struct{} {
	replace(r.requested, string(request.Cause))
	return nil
}

// replace puts the value into a channel of capacity one and drops an older value. The channel must have one writer.
func replace[T any](channel chan T, value T) {
	select {
	case <-channel:
	default:
	}
	channel <- value
}

// Run starts repairs until ctx ends. The interval counts from the last repair. The first interval counts from the
// call, because a new leader applies everything.
func (r *Scheduler) Run(ctx context.Context) error {
	interval, last := defaultInterval, time.Now()
	for {
		timer := time.NewTimer(time.Until(last.Add(interval)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case interval = <-r.interval:
		case cause := <-r.requested:
			last = time.Now()
			r.start(ctx, cause)
		case <-timer.C:
			last = time.Now()
			r.start(ctx, "interval")
		}
		timer.Stop()
	}
}
