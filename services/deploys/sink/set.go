package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Retry configures how failed attempts are repeated.
type Retry struct {
	Min    time.Duration `yaml:"min" help:"delay before the second attempt; each further delay is about twice as long"`
	Max    time.Duration `yaml:"max" help:"longest delay between attempts, unless the destination asks for a longer one"`
	GiveUp time.Duration `yaml:"give_up" help:"how long a fact is retried before it is dead-lettered"`
}

// DefaultRetry returns the default configuration.
func DefaultRetry() Retry {
	return Retry{Min: time.Second, Max: 5 * time.Minute, GiveUp: 24 * time.Hour}
}

// Entry is one sink of a set.
type Entry struct {
	// Name has lower-case letters, digits and dashes, at most 40. It identifies the position of the sink, so a renamed
	// sink starts like a new one. Required.
	Name string
	// Type is shown to operators.
	Type string
	// Sink delivers the facts. Required.
	Sink Sink
	// Filter selects facts. Defaults to all.
	Filter *Filter
	// Backfill lets a new sink start with the oldest stored fact. By default it starts with the
	// next one.
	Backfill bool
	// Retry defaults to DefaultRetry.
	Retry Retry
	// MaxPending is the maximum number of unfinished facts in memory. Defaults to 500.
	MaxPending int
}

// Config of a set of sinks. A field without a default is required.
type Config struct {
	Cell      topology.Cell
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Logger    *slog.Logger
	Entries   []Entry

	// Consumers creates the consumers of the sinks. Defaults to [consumers.Direct], which only the state service may use.
	Consumers Consumers
	// Metrics defaults to metrics that are not registered.
	Metrics *Metrics
	// LockInterval is how often a standby replica tries to take the lock. Defaults to 500 ms.
	LockInterval time.Duration
	// AckWait is the ack deadline of the consumers. Defaults to 30 s.
	AckWait time.Duration
	// Grace is how long a delivery in progress may continue during shutdown. Defaults to 10 s.
	Grace time.Duration
	// StaleAfter is how long a sink may fail before Check returns an error. Defaults to 1 min.
	StaleAfter time.Duration
	// SaveInterval is how often positions and errors are saved. Defaults to 10 s.
	SaveInterval time.Duration
}

// Consumers creates the consumer of a sink on a stream, or updates its settings.
type Consumers interface {
	Sink(ctx context.Context, s topology.SinkConsumer) (jetstream.Consumer, error)
}

// Set runs all sinks of the service.
type Set struct {
	cfg     Config
	metrics *Metrics

	mu      sync.Mutex
	workers map[string]*worker // nil on a standby replica
}

var sinkName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// ValidName reports whether a sink may have the name.
func ValidName(name string) bool { return sinkName.MatchString(name) }

// New returns a set that starts with Run.
func New(cfg Config) (*Set, error) {
	if cfg.Pool == nil || cfg.JetStream == nil || cfg.Logger == nil || cfg.Cell == "" {
		return nil, errors.New("configure sinks: pool, JetStream, logger and cell are required")
	}
	cfg.Entries = slices.Clone(cfg.Entries)
	seen := map[string]bool{}
	for i := range cfg.Entries {
		e := &cfg.Entries[i]
		switch {
		case !ValidName(e.Name):
			return nil, fmt.Errorf("configure sinks: name %q: use a-z, 0-9 and -, at most 40", e.Name)
		case seen[e.Name]:
			return nil, fmt.Errorf("configure sinks: name %q: is used twice", e.Name)
		case e.Sink == nil:
			return nil, fmt.Errorf("configure sinks: sink %q: has no implementation", e.Name)
		}
		seen[e.Name] = true
		if e.Filter == nil {
			e.Filter = &Filter{}
		}
		d := DefaultRetry()
		e.Retry.Min, e.Retry.Max = cmp.Or(e.Retry.Min, d.Min), cmp.Or(e.Retry.Max, d.Max)
		e.Retry.GiveUp = cmp.Or(e.Retry.GiveUp, d.GiveUp)
		e.MaxPending = cmp.Or(e.MaxPending, 500)
	}
	cfg.AckWait = cmp.Or(cfg.AckWait, 30*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 10*time.Second)
	cfg.StaleAfter = cmp.Or(cfg.StaleAfter, time.Minute)
	cfg.SaveInterval = cmp.Or(cfg.SaveInterval, 10*time.Second)
	if cfg.Metrics == nil {
		cfg.Metrics = newMetrics()
	}
	if cfg.Consumers == nil {
		cfg.Consumers = consumers.Direct{JetStream: cfg.JetStream, Cell: cfg.Cell}
	}
	return &Set{cfg: cfg, metrics: cfg.Metrics}, nil
}

// Run delivers facts while this replica holds the lock. It returns nil when ctx ends. It logs errors of the database
// and of NATS and retries.
func (s *Set) Run(ctx context.Context) error {
	if len(s.cfg.Entries) == 0 {
		<-ctx.Done()
		return nil
	}
	delay := restartPolicy().Backoff()
	for ctx.Err() == nil {
		err := s.lead(ctx, delay.Reset)
		if ctx.Err() != nil {
			break
		}
		s.cfg.Logger.WarnContext(ctx, "delivery to sinks failed; restarting", logkey.Error(err))
		if delay.Wait(ctx) != nil {
			break
		}
	}
	return nil //nolint:nilerr // The caller ended ctx.
}

// restartPolicy returns the back-off for restarts of workers and sets.
func restartPolicy() retry.Policy {
	return retry.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second}
}

// lead takes the lock and delivers until the lock is lost or ctx ends.
func (s *Set) lead(ctx context.Context, locked func()) error {
	held, err := postgres.Lock{Name: "sinks", Interval: s.cfg.LockInterval}.Acquire(ctx, s.cfg.Pool)
	if err != nil {
		return err
	}
	locked()
	s.cfg.Logger.InfoContext(ctx, "this replica now delivers to the sinks", slog.Int(logkey.Count, len(s.cfg.Entries)))
	leading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st := &store{conn: held.Conn(), lost: cancel}
	workers := map[string]*worker{}
	for _, e := range s.cfg.Entries {
		workers[e.Name] = newWorker(s, e, st)
	}
	s.setWorkers(workers)
	defer s.setWorkers(nil)

	var running sync.WaitGroup
	for _, w := range workers {
		running.Go(func() { w.supervise(leading) })
	}
	s.prune(leading, st)
	running.Wait()
	return errors.Join(context.Cause(leading), held.Release(ctx))
}

// prune deletes old rows until ctx ends. Its queries also detect a lost lock while no facts are delivered.
func (s *Set) prune(ctx context.Context, st *store) {
	ticker := time.NewTicker(s.cfg.SaveInterval)
	defer ticker.Stop()
	for {
		if err := st.prune(ctx); err != nil {
			s.cfg.Logger.WarnContext(ctx, "failed to delete old deliveries", logkey.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Set) setWorkers(workers map[string]*worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers = workers
}

// Check returns the errors of sinks that have failed for StaleAfter. On a standby replica it
// returns nil.
func (s *Set) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failures []error
	for _, e := range s.cfg.Entries {
		if w := s.workers[e.Name]; w != nil {
			failures = append(failures, w.check(s.cfg.StaleAfter))
		}
	}
	return errors.Join(failures...)
}

func (s *Set) checkName(name string) error {
	if slices.ContainsFunc(s.cfg.Entries, func(e Entry) bool { return e.Name == name }) {
		return nil
	}
	return fault.New(errcode.NotFound, "sink %q does not exist", name)
}
