package execution

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"lockstep.internal/libs/postgres"
)

// TailConfig configures [Tails]. All fields are required, unless they have a default.
type TailConfig struct {
	Store TraceStore
	// Traces and Jobs report the ids of jobs whose trace or state changed. They have to run.
	Traces, Jobs *postgres.ChangeListener[int64]
	// Draining ends all streams when it is closed. Defaults to the drain of the server of each request.
	Draining <-chan struct{}
	// Interval between two signs of life on a stream. Defaults to 15 s.
	Interval time.Duration
	Logger   *slog.Logger
	Now      func() time.Time
}

// Tails sends traces to readers while they grow. [Tails.Run] has to run. It is safe for concurrent use.
type Tails struct {
	cfg TailConfig

	mu      sync.Mutex
	readers map[int64]map[chan struct{}]struct{} // by job
}

// NewTails returns tails without readers.
func NewTails(cfg TailConfig) *Tails {
	cfg.Interval = cmp.Or(cfg.Interval, tailInterval)
	return &Tails{cfg: cfg, readers: map[int64]map[chan struct{}]struct{}{}}
}

// Run wakes readers until ctx is done.
func (t *Tails) Run(ctx context.Context, ready func()) {
	traces, jobs := t.cfg.Traces.Subscribe(), t.cfg.Jobs.Subscribe()
	defer traces.Close()
	defer jobs.Close()
	// What happened before is not known.
	t.wake(nil, true)
	ready()
	for {
		select {
		case <-traces.Changed():
			t.wake(traces.Take())
		case <-jobs.Changed():
			t.wake(jobs.Take())
		case <-ctx.Done():
			return
		}
	}
}

// wake wakes the readers of jobs.
func (t *Tails) wake(ids []int64, all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all {
		ids = ids[:0]
		for id := range t.readers {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		for reader := range t.readers[id] {
			select {
			case reader <- struct{}{}:
			default:
			}
		}
	}
}

// wait returns a channel that receives a value when the trace or the state of a job changed, until stop is called.
func (t *Tails) wait(id int64) (wake <-chan struct{}, stop func()) {
	reader := make(chan struct{}, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readers[id] == nil {
		t.readers[id] = map[chan struct{}]struct{}{}
	}
	t.readers[id][reader] = struct{}{}
	return reader, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.readers[id], reader)
		if len(t.readers[id]) == 0 {
			delete(t.readers, id)
		}
	}
}
