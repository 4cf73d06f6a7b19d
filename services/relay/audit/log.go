package audit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// DefaultRoom is how many records may wait to be published.
	DefaultRoom = 50_000
	// MaxBatch of records in one event.
	MaxBatch = 500
	// linger is how long a record waits for others.
	linger = time.Second
	// retryMax is the longest pause before what could not be published is tried again.
	retryMax = 5 * time.Second
)

// Batch of records of one agent, in the order in which they were made.
type Batch struct {
	// ID is the same whenever the batch is published.
	ID      string
	AgentID int64
	At      time.Time
	Records []Record
}

// Config of a [Log]. Publish and Logger are required.
type Config struct {
	// Publish stores the batch, or returns an error, and is called again.
	Publish func(ctx context.Context, b Batch) error
	// Room for records. Defaults to [DefaultRoom].
	Room   int
	Logger *slog.Logger
}

// Log is made by [NewLog]. It may be used by many goroutines.
type Log struct {
	cfg  Config
	room *semaphore.Weighted

	mu      sync.Mutex
	waiting []Record
	count   int           // of records that are not published
	full    chan struct{} // has an element when there is a batch

	// unpublished are batches that were begun to be published; only who publishes uses them.
	unpublished []Batch
}

// NewLog makes a log that is published while Run runs.
func NewLog(cfg Config) *Log {
	if cfg.Room == 0 {
		cfg.Room = DefaultRoom
	}
	return &Log{cfg: cfg, room: semaphore.NewWeighted(int64(cfg.Room)), full: make(chan struct{}, 1)}
}

// Reserve room for the records of one request, and waits until there is some. Each is then to be given to [Log.Add], or back with [Log.Release]. Fault unavailable: ctx is done.
func (l *Log) Reserve(ctx context.Context, records int) error {
	if err := l.room.Acquire(ctx, int64(records)); err != nil {
		return fault.Wrap(context.Cause(ctx), errcode.Unavailable, "what passes through this relay cannot be recorded at present, since NATS is away: try again")
	}
	return nil
}

// TryReserve is Reserve where there is room at once; it says whether there was.
func (l *Log) TryReserve(records int) bool { return l.room.TryAcquire(int64(records)) }

// Release gives back room that is not needed.
func (l *Log) Release(records int) { l.room.Release(int64(records)) }

// Add takes a record for which there is room.
func (l *Log) Add(r Record) {
	r.Path, r.Error, r.Method, r.Verb, r.Subject = Cut(r.Path, MaxPath), Cut(r.Error, maxError), Cut(r.Method, maxMethod), Cut(r.Verb, maxMethod), Cut(r.Subject, maxName)
	l.mu.Lock()
	l.waiting = append(l.waiting, r)
	l.count++
	full := len(l.waiting) == MaxBatch
	l.mu.Unlock()
	if full {
		select {
		case l.full <- struct{}{}:
		default:
		}
	}
}

// Waiting counts the records that are not published.
func (l *Log) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Run publishes until ctx is done, and then what there is, until finish is done.
func (l *Log) Run(ctx, finish context.Context) error {
	tick := time.NewTicker(linger)
	defer tick.Stop()
	for {
		select {
		case <-l.full:
		case <-tick.C:
		case <-ctx.Done():
			return l.publish(finish)
		}
		if err := l.publish(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// publish all that waits. What it cannot publish waits on, as it is: who has got it and could not say so knows it by its id.
func (l *Log) publish(ctx context.Context) error {
	l.mu.Lock()
	records := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	l.unpublished = append(l.unpublished, split(records)...)
	for len(l.unpublished) > 0 {
		b := l.unpublished[0]
		_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, l.cfg.Publish(ctx, b) }, backoff.WithBackOff(pauses()), backoff.WithMaxElapsedTime(0),
			backoff.WithNotify(func(err error, pause time.Duration) {
				l.cfg.Logger.WarnContext(ctx, "records of requests could not be published, and are tried again", slog.Any("error", err), slog.Duration("delay", pause))
			}))
		if err != nil {
			return fmt.Errorf("publish what has passed through the relay: %w", err)
		}
		l.unpublished = l.unpublished[1:]
		l.mu.Lock()
		l.count -= len(b.Records)
		l.mu.Unlock()
		l.room.Release(int64(len(b.Records)))
	}
	return nil
}

func pauses() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.MaxInterval = retryMax
	return b
}

// split makes batches of records, each of one agent.
func split(records []Record) []Batch {
	var batches []Batch
	open := map[int64]int{} // the batch of an agent that has room
	for _, r := range records {
		i, is := open[r.AgentID]
		if !is || len(batches[i].Records) == MaxBatch {
			i = len(batches)
			open[r.AgentID] = i
			batches = append(batches, Batch{ID: uuid.NewString(), AgentID: r.AgentID, At: time.Now()})
		}
		batches[i].Records = append(batches[i].Records, r)
	}
	return batches
}
