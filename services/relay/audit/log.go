package audit

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// DefaultCapacity is the default capacity, in records.
	DefaultCapacity = 50_000
	// MaxBatch of records in one event.
	MaxBatch = 500
	// publishInterval is the maximum delay before a batch is published.
	publishInterval = time.Second
)

// publishRetry bounds the pauses between attempts to publish a batch.
var publishRetry = retry.Policy{Min: 500 * time.Millisecond, Max: 5 * time.Second}

// Batch of records of one agent, in order.
type Batch struct {
	// ID is the same in every attempt to publish the batch.
	ID      string
	AgentID int64
	At      time.Time
	Records []Record
}

// Config of a [Log]. Publish and Logger are required.
type Config struct {
	// Publish stores the batch. It is retried after an error.
	Publish func(ctx context.Context, b Batch) error
	// Capacity for records. Defaults to [DefaultCapacity].
	Capacity int
	// Burst is how many records one caller may cause at once, and PerMinute how many per minute after that. Default to
	// [DefaultBurst] and [DefaultPerMinute].
	Burst, PerMinute int
	Logger           *slog.Logger
}

// Log collects records and publishes them. It may be used by many goroutines.
type Log struct {
	cfg      Config
	capacity *semaphore.Weighted

	mu          sync.Mutex
	waiting     []Record
	unpublished int           // records
	full        chan struct{} // receives when there is a full batch
	budgets     map[caller]*budget

	// batches that are being published. Owned by Run.
	batches []Batch
}

// NewLog makes a log. [Log.Run] publishes it.
func NewLog(cfg Config) *Log {
	if cfg.Capacity == 0 {
		cfg.Capacity = DefaultCapacity
	}
	cfg.Burst, cfg.PerMinute = cmp.Or(cfg.Burst, DefaultBurst), cmp.Or(cfg.PerMinute, DefaultPerMinute)
	return &Log{
		cfg: cfg, capacity: semaphore.NewWeighted(int64(cfg.Capacity)), full: make(chan struct{}, 1),
		budgets: map[caller]*budget{},
	}
}

// Reserve waits until there is capacity for the records of one request. The caller adds each with [Log.Add], or
// releases it with [Log.Release]. Fault unavailable: ctx is done.
func (l *Log) Reserve(ctx context.Context, records int) error {
	if err := l.capacity.Acquire(ctx, int64(records)); err != nil {
		return fault.Wrap(context.Cause(ctx), errcode.Unavailable,
			"the audit log is full because NATS is unavailable: try again")
	}
	return nil
}

// Release returns reserved capacity.
func (l *Log) Release(records int) { l.capacity.Release(int64(records)) }

// Add adds a record for which capacity was reserved.
func (l *Log) Add(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(truncated(r))
}

// add is called with the mutex held.
func (l *Log) add(r Record) {
	l.waiting = append(l.waiting, r)
	l.unpublished++
	if len(l.waiting) == MaxBatch {
		select {
		case l.full <- struct{}{}:
		default:
		}
	}
}

func truncated(r Record) Record {
	r.Path, r.Error, r.Subject = Truncate(r.Path, MaxPath), Truncate(r.Error, maxError), Truncate(r.Subject, maxName)
	r.Method, r.Verb = Truncate(r.Method, maxMethod), Truncate(r.Verb, maxMethod)
	return r
}

// Unpublished counts the records that are not published.
func (l *Log) Unpublished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unpublished
}

// Run publishes until ctx is done, and then the rest, until drainCtx is done.
func (l *Log) Run(ctx, drainCtx context.Context) error {
	ticker := time.NewTicker(publishInterval)
	defer ticker.Stop()
	summaries := time.NewTicker(summaryInterval)
	defer summaries.Stop()
	for {
		select {
		case <-l.full:
		case <-ticker.C:
		case <-summaries.C:
			l.flushSummaries()
		case <-ctx.Done():
			if err := l.publish(drainCtx); err != nil { // makes capacity for the summaries
				return err
			}
			l.flushSummaries()
			return l.publish(drainCtx)
		}
		if err := l.publish(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// publish publishes all records. A batch that fails is kept unchanged: its id deduplicates a batch that was stored.
func (l *Log) publish(ctx context.Context) error {
	l.mu.Lock()
	records := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	l.batches = append(l.batches, split(records)...)
	for len(l.batches) > 0 {
		b := l.batches[0]
		publish := func() error { return l.cfg.Publish(ctx, b) }
		err := publishRetry.Do(ctx, publish, func(err error, pause time.Duration) {
			l.cfg.Logger.WarnContext(ctx, "publishing audit records failed; retrying",
				slog.Int(logkey.Count, len(b.Records)), logkey.Error(err), slog.Duration(logkey.RetryIn, pause))
		})
		if err != nil {
			return fmt.Errorf("publish audit records: %w", err)
		}
		l.batches = l.batches[1:]
		l.mu.Lock()
		l.unpublished -= len(b.Records)
		l.mu.Unlock()
		l.capacity.Release(int64(len(b.Records)))
	}
	return nil
}

// split groups records into batches of one agent.
func split(records []Record) []Batch {
	var batches []Batch
	current := map[int64]int{} // index of the batch that is not full, by agent
	for _, r := range records {
		i, ok := current[r.AgentID]
		if !ok || len(batches[i].Records) == MaxBatch {
			i = len(batches)
			current[r.AgentID] = i
			batches = append(batches, Batch{ID: uuid.NewString(), AgentID: r.AgentID, At: time.Now()})
		}
		batches[i].Records = append(batches[i].Records, r)
	}
	return batches
}
