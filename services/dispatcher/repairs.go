package dispatcher

import (
	"context"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// defaultRepairInterval applies until the agent's configuration arrives.
const defaultRepairInterval = time.Hour

// repairs decides when every workspace is applied again: on a resync request of the control plane
// and at the configured interval. Requests never block, and requests that arrive during a start
// count once. It is the handler of the control channel.
type repairs struct {
	start     func(ctx context.Context, cause string)
	requested chan string        // the last cause
	interval  chan time.Duration // the last interval
}

func newRepairs(start func(ctx context.Context, cause string)) *repairs {
	return &repairs{start: start, requested: make(chan string, 1), interval: make(chan time.Duration, 1)}
}

// Configure implements agentcontrol.Handler.
func (r *repairs) Configure(_ context.Context, cfg events.AgentConfig) <-chan struct{} {
	replace(r.interval, time.Duration(cfg.FullResyncIntervalMs)*time.Millisecond)
	return nil
}

// Resync implements agentcontrol.Handler.
func (r *repairs) Resync(_ context.Context, request events.ResyncRequested) <-chan struct{} {
	replace(r.requested, string(request.Cause))
	return nil
}

// replace stores the value in a channel of capacity one with a single writer, and drops an older
// one.
func replace[T any](channel chan T, value T) {
	select {
	case <-channel:
	default:
	}
	channel <- value
}

// run starts repairs until ctx ends. The interval counts from the last repair, and from the start,
// which applies everything.
func (r *repairs) run(ctx context.Context) error {
	interval, last := defaultRepairInterval, time.Now()
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
