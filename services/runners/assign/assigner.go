package assign

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/queue"
	"lockstep.internal/services/runners/wire"
)

// Runner is a runner that asks for a job.
type Runner struct {
	ID int64
	// MaximumTimeout of jobs on it; 0 for none.
	MaximumTimeout time.Duration
	// Matcher tells which jobs it takes.
	Matcher queue.Matcher
}

// Runners are the runners of the cell.
type Runners interface {
	// Identify returns the runner of a token. A token that is certainly not valid is the fault permission_denied.
	Identify(ctx context.Context, token string) (Runner, error)
	// Manager records the contact of the process that asks, and returns its id.
	Manager(ctx context.Context, runnerID int64, request wire.JobRequest) (int64, error)
	// Changed returns a channel that is closed by the next change of a runner.
	Changed() <-chan struct{}
}

// Material is what the payload of a job is made from, besides the job.
type Material struct {
	// Definition is nil if it is missing or cannot be read.
	Definition   *job.Definition
	Dependencies []Dependency
}

// Dependency is a job whose artifacts are downloaded.
type Dependency struct {
	JobID    int64
	Name     string
	Filename string
	Size     int64
}

// Claim is a job that a runner takes, with the token for it.
type Claim struct {
	Change    job.Change
	TokenHash [32]byte
	ExpiresAt time.Time
}

// Store stores claims.
type Store interface {
	// Live returns all jobs that wait for a runner or are with one.
	Live(ctx context.Context) ([]job.Job, error)
	// Read returns those of the jobs that exist.
	Read(ctx context.Context, ids []int64) ([]job.Job, error)
	// Changed returns those of the jobs that exist with another revision than the given one.
	Changed(ctx context.Context, revisions map[int64]int64) ([]job.Job, error)
	// Materials returns the material of each job by its id.
	Materials(ctx context.Context, jobs []job.Job) (map[int64]Material, error)
	// Claim stores the claims of jobs that have not changed, in one transaction. It returns the ids of these jobs.
	Claim(ctx context.Context, claims []Claim) (map[int64]bool, error)
	// Release gives back a job that the runner never got.
	Release(ctx context.Context, claimed job.Job) error
	// Fail ends a job that cannot be given to a runner.
	Fail(ctx context.Context, j job.Job, reason job.FailureReason) error
}

// Token is a token for one claim of a job.
type Token struct {
	Value     string
	Hash      [32]byte
	ExpiresAt time.Time
}

// Tokens makes the tokens of jobs.
type Tokens interface {
	Issue(claimed job.Job, artifactJobIDs []int64) (Token, error)
}

// Payloads makes the answer for a claimed job.
type Payloads interface {
	Payload(claimed job.Job, material Material, token string) wire.Job
}

// Config of an [Assigner]. All fields are required, unless they have a default.
type Config struct {
	Cell     topology.Cell
	Runners  Runners
	Store    Store
	Tokens   Tokens
	Payloads Payloads
	// Changes reports the ids of jobs that changed.
	Changes *postgres.ChangeListener[int64]
	Logger  *slog.Logger
	// Metrics is optional.
	Metrics *Metrics
	Now     func() time.Time
}

// Assigner gives jobs to runners. [Assigner.Run] has to run. It is safe for concurrent use.
type Assigner struct {
	cfg         Config
	incarnation string
	claims      chan *pick
	retry       chan struct{} // has a value when unknown has some

	mu      sync.Mutex
	jobs    *queue.Queue
	waiting waiters
	// unknown are jobs whose claim failed in a way that leaves open what is stored.
	unknown  []int64
	position uint64 // number of jobs that began to wait
}

// New returns an assigner without jobs.
func New(cfg Config) *Assigner {
	if cfg.Metrics == nil {
		cfg.Metrics = newMetrics()
	}
	return &Assigner{
		cfg: cfg, incarnation: rand.Text()[:16], claims: make(chan *pick),
		retry: make(chan struct{}, 1), jobs: queue.New(),
	}
}

// Request implements the queue of the HTTP contract.
func (a *Assigner) Request(ctx context.Context, request wire.JobRequest) (*wire.Job, string, error) {
	answer, err := a.request(ctx, request)
	a.mu.Lock()
	defer a.mu.Unlock()
	last := wire.LastUpdate{Cell: string(a.cfg.Cell), Incarnation: a.incarnation, Position: a.position}
	return answer, last.String(), err
}

func (a *Assigner) request(ctx context.Context, request wire.JobRequest) (*wire.Job, error) {
	var manager int64
	for ctx.Err() == nil {
		changed := a.cfg.Runners.Changed()
		runner, err := a.cfg.Runners.Identify(ctx, request.Token)
		if err != nil {
			return nil, unlessEnded(ctx, err)
		}
		if manager == 0 {
			if manager, err = a.cfg.Runners.Manager(ctx, runner.ID, request); err != nil {
				return nil, unlessEnded(ctx, err)
			}
		}
		next, found := a.next(ctx, runner.Matcher, changed)
		if !found {
			continue // the runner has changed, or the request ends
		}
		answer, err := a.claim(ctx, next, runner, manager)
		if answer != nil || err != nil {
			return answer, unlessEnded(ctx, err)
		}
	}
	return nil, nil //nolint:nilnil // no job is no error
}

// unlessEnded returns no error for a request that has ended: then there is no job, which is no error.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// next returns the next job for a runner. It waits until there is one, the channel is closed or ctx ends.
func (a *Assigner) next(ctx context.Context, matcher queue.Matcher, changed <-chan struct{}) (job.Job, bool) {
	a.mu.Lock()
	if j, found := a.jobs.Take(matcher); found {
		a.mu.Unlock()
		return j, true
	}
	w := a.waiting.add(matcher)
	a.cfg.Metrics.waiting(1)
	a.mu.Unlock()
	defer a.cfg.Metrics.waiting(-1)
	select {
	case j := <-w.handed:
		return j, true
	case <-changed:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting.remove(w)
	select {
	case j := <-w.handed:
		if ctx.Err() == nil {
			// The runner may have changed: its next turn decides.
			a.restore(j.ID, &j)
			return job.Job{}, false
		}
		a.restore(j.ID, &j)
	default:
	}
	return job.Job{}, false
}

// put takes jobs as they are stored, and hands those that begin to wait to requests.
func (a *Assigner) put(jobs ...job.Job) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range jobs {
		if a.jobs.Put(j) {
			a.hand(j)
		}
	}
}

// restore replaces what is known of a job by what is stored. The lock is held.
func (a *Assigner) restore(id int64, stored *job.Job) {
	if a.jobs.Restore(id, stored) {
		a.hand(*stored)
	}
}

// hand gives a job to the request that has waited longest for one like it: to be exact, that request gets the job that
// is next for its runner. The lock is held.
func (a *Assigner) hand(j job.Job) {
	a.position++
	w := a.waiting.first(j)
	if w == nil {
		return
	}
	if next, found := a.jobs.Take(w.matcher); found {
		a.waiting.remove(w)
		w.handed <- next
	}
}

// Waiting returns the number of jobs that wait, and of requests that do.
func (a *Assigner) Waiting() (jobs, requests int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.jobs.Waiting(), a.waiting.len()
}

func errOf(j job.Job, doing string, err error) error {
	return fmt.Errorf("%s job %d: %w", doing, j.ID, err)
}
