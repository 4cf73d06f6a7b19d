package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Retry bounds attempts that fail.
type Retry struct {
	Min    time.Duration `yaml:"min" help:"pause before the second attempt; each pause is about twice the one before"`
	Max    time.Duration `yaml:"max" help:"longest pause between attempts, unless the destination asks for a longer one"`
	GiveUp time.Duration `yaml:"give_up" help:"how long a fact is tried before it is put on DEAD"`
}

// DefaultRetry is what Retry is unless told.
func DefaultRetry() Retry {
	return Retry{Min: time.Second, Max: 5 * time.Minute, GiveUp: 24 * time.Hour}
}

// Entry is one sink of a set.
type Entry struct {
	// Name is lower-case letters, digits and dashes, at most 40, and keeps the position: under another name a sink begins anew. Required.
	Name string
	// Type is shown to people.
	Type string
	// Sink does the work. Required.
	Sink Sink
	// Filter selects what is told. Defaults to all.
	Filter *Filter
	// Backfill makes a new sink begin with the oldest fact there is; otherwise it begins with the next one.
	Backfill bool
	// Retry defaults to DefaultRetry.
	Retry Retry
	// Waiting is how many facts are taken from the stream before they are done with. Defaults to 500.
	Waiting int
}

// Config of a set of sinks. What is not said to have a default is required.
type Config struct {
	Cell      topology.Cell
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Logger    *slog.Logger
	Entries   []Entry

	// Metrics to write to. Defaults to none.
	Metrics *Metrics
	// LockInterval is how often a replica that waits asks whether it may deliver. Defaults to 500 ms.
	LockInterval time.Duration
	// AckWait is when the server delivers again what this replica does not say it still works on. Defaults to 30 s.
	AckWait time.Duration
	// Grace is what a delivery under way gets when the set is told to end. Defaults to 10 s.
	Grace time.Duration
	// StaleAfter is how long a sink fails before Check tells of it. Defaults to 1 min.
	StaleAfter time.Duration
	// NoteInterval is how often positions and troubles are written down. Defaults to 10 s.
	NoteInterval time.Duration
}

// Set runs all sinks of the service.
type Set struct {
	cfg     Config
	metrics *Metrics

	mu    sync.Mutex
	pumps map[string]*pump // of this replica while it delivers
	leads bool
}

var namePatternOfSinks = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// ValidName says whether a sink may have the name.
func ValidName(name string) bool { return namePatternOfSinks.MatchString(name) }

// New makes a set; it does nothing until Run.
func New(cfg Config) (*Set, error) {
	if cfg.Pool == nil || cfg.JetStream == nil || cfg.Logger == nil || cfg.Cell == "" {
		return nil, errors.New("configure sinks: pool, JetStream, logger and cell are required")
	}
	cfg.Entries = slices.Clone(cfg.Entries)
	seen := map[string]bool{}
	for i := range cfg.Entries {
		e := &cfg.Entries[i]
		if !ValidName(e.Name) || seen[e.Name] || e.Sink == nil {
			return nil, fmt.Errorf("configure sinks: sink %q has a name that is taken or not made of a-z, 0-9 and -, or does nothing", e.Name)
		}
		seen[e.Name] = true
		if e.Filter == nil {
			e.Filter = &Filter{}
		}
		e.Retry = e.Retry.withDefaults()
		e.Waiting = orInt(e.Waiting, 500)
	}
	cfg.AckWait = orDuration(cfg.AckWait, 30*time.Second)
	cfg.Grace = orDuration(cfg.Grace, 10*time.Second)
	cfg.StaleAfter = orDuration(cfg.StaleAfter, time.Minute)
	cfg.NoteInterval = orDuration(cfg.NoteInterval, 10*time.Second)
	if cfg.Metrics == nil {
		cfg.Metrics = newMetrics()
	}
	return &Set{cfg: cfg, metrics: cfg.Metrics}, nil
}

func (r Retry) withDefaults() Retry {
	d := DefaultRetry()
	return Retry{Min: orDuration(r.Min, d.Min), Max: orDuration(r.Max, d.Max), GiveUp: orDuration(r.GiveUp, d.GiveUp)}
}

func orDuration(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

func orInt(n, fallback int) int {
	if n == 0 {
		return fallback
	}
	return n
}

// Run delivers, or waits for the replica that does, until ctx is done, and returns nil. Failures of the database and of NATS are logged and retried for ever.
func (s *Set) Run(ctx context.Context) error {
	if len(s.cfg.Entries) == 0 {
		<-ctx.Done()
		return nil
	}
	pause := pauses()
	for ctx.Err() == nil {
		err := s.lead(ctx, pause.Reset)
		if ctx.Err() != nil {
			break
		}
		s.cfg.Logger.WarnContext(ctx, "the sinks start again", "error", err)
		if sleep(ctx, pause.NextBackOff()) != nil {
			break
		}
	}
	return nil //nolint:nilerr // asked to end
}

// pauses are those after failures of the set itself.
func pauses() *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval, p.Multiplier = 50*time.Millisecond, 5*time.Second, 2
	return p
}

// lead delivers while it holds the lock.
func (s *Set) lead(ctx context.Context, led func()) error {
	held, err := postgres.Lock{Name: "sinks", Interval: s.cfg.LockInterval}.Acquire(ctx, s.cfg.Pool)
	if err != nil {
		return err
	}
	led()
	s.cfg.Logger.InfoContext(ctx, "this replica delivers to the sinks", "sinks", len(s.cfg.Entries))
	leading, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	st := &store{conn: held.Conn(), lost: lose}
	pumps := map[string]*pump{}
	for _, e := range s.cfg.Entries {
		pumps[e.Name] = newPump(s, e, st)
	}
	s.leading(pumps)
	defer s.leading(nil)

	var running sync.WaitGroup
	for _, p := range pumps {
		running.Go(func() { p.supervise(leading) })
	}
	s.housekeeping(leading, st)
	running.Wait()
	cause := context.Cause(leading)
	return errors.Join(cause, held.Release(ctx))
}

// housekeeping forgets what is old, which also notices the loss of the lock while nothing is to be delivered, until ctx is done.
func (s *Set) housekeeping(ctx context.Context, st *store) {
	ticker := time.NewTicker(s.cfg.NoteInterval)
	defer ticker.Stop()
	for {
		if err := st.prune(ctx); err != nil {
			s.cfg.Logger.WarnContext(ctx, "old deliveries of sinks could not be forgotten", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Set) leading(pumps map[string]*pump) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumps, s.leads = pumps, pumps != nil
}

// Check says what ails the sinks that this replica serves: nil while they get through or another replica serves them.
func (s *Set) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var troubles []error
	for _, e := range s.cfg.Entries {
		if p := s.pumps[e.Name]; p != nil {
			troubles = append(troubles, p.check(s.cfg.StaleAfter))
		}
	}
	return errors.Join(troubles...)
}

func (s *Set) has(name string) error {
	for _, e := range s.cfg.Entries {
		if e.Name == name {
			return nil
		}
	}
	return fault.New(errcode.NotFound, "there is no sink %q", name)
}
