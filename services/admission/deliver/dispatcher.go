package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/seal"
	"lockstep.internal/services/admission/callback"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/jobtoken"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/postgres"
)

const (
	// interval is the longest time until a question is found whose notification was lost.
	interval = time.Second
	// evaluations is the number of new jobs that a replica evaluates at the same time, and evaluationBatch that of a
	// transaction.
	evaluations, evaluationBatch = 200, 50
	// coalesce is the time in which several ends of requests and notifications lead to one round.
	coalesce = 2 * time.Millisecond
	// leaseMargin is the time that a replica has beside the request itself, for policies and the database.
	leaseMargin = 5 * time.Second
	// conflicts is how often a result is applied again to a job that others change.
	conflicts = 10
	// staleAfter is how long the database must fail before Check does.
	staleAfter = 10 * time.Second
	// recordTimeout bounds what is stored while the service stops.
	recordTimeout = 5 * time.Second
)

// Config of a [Dispatcher]. Fields are required unless they name a default.
type Config struct {
	Jobs    postgres.Jobs
	Decider *decide.Decider
	// Changes wakes the dispatcher.
	Changes *libpostgres.ChangeListener[string]
	// Key opens signing secrets.
	Key     seal.Key
	Network egress.Config
	// PublicURL is the address of this service for controllers; empty: they have no token and cannot answer later.
	PublicURL string
	Logger    *slog.Logger
	Metrics   *Metrics
	Now       func() time.Time
	// LeaseMargin defaults to 5 s.
	LeaseMargin time.Duration
}

// Dispatcher asks controllers. Its methods may be called concurrently; Run is called once.
type Dispatcher struct {
	cfg Config

	mu    sync.Mutex
	lanes map[int64]*lane
	err   error
	since time.Time

	running  sync.WaitGroup
	finished chan struct{}
}

// New returns a dispatcher; Run starts it.
func New(cfg Config) *Dispatcher {
	if cfg.LeaseMargin == 0 {
		cfg.LeaseMargin = leaseMargin
	}
	return &Dispatcher{cfg: cfg, lanes: map[int64]*lane{}, finished: make(chan struct{}, 1)}
}

// Run asks controllers until ctx ends, and then waits until the results of the last requests are recorded.
func (d *Dispatcher) Run(ctx context.Context, ready func()) error {
	changes := d.cfg.Changes.Subscribe()
	defer changes.Close()
	defer d.running.Wait()
	ready()
	var log retry.FailureLog
	for ctx.Err() == nil {
		changes.Take()
		pause, err := d.round(ctx)
		d.setError(err)
		if err != nil && ctx.Err() == nil {
			pause = interval
			d.cfg.Logger.LogAttrs(ctx, log.Level(), "asking controllers failed; retrying", logkey.Error(err))
		} else {
			log.Reset()
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-changes.Changed():
			_ = retry.Sleep(ctx, coalesce) // the loop sees the end of ctx
		case <-d.finished:
			_ = retry.Sleep(ctx, coalesce)
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

func (d *Dispatcher) setError(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.since = time.Now()
	}
	d.err = err
}

// Check is a health check. It fails while the database fails.
func (d *Dispatcher) Check(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil || time.Since(d.since) < staleAfter {
		return nil
	}
	return fmt.Errorf("controllers have not been asked for %s: %w", time.Since(d.since).Round(time.Second), d.err)
}

// round takes what is due and starts to ask. It returns the time until the next round.
func (d *Dispatcher) round(ctx context.Context) (time.Duration, error) {
	found, err := d.cfg.Jobs.Lanes(ctx)
	if err != nil {
		return 0, err
	}
	now := d.cfg.Now()
	claims := d.claims(found, now)
	pause := interval
	for _, l := range found {
		if !l.NextDue.IsZero() && l.NextDue.After(now) {
			pause = min(pause, l.NextDue.Sub(now))
		}
	}
	if len(claims) == 0 {
		return pause, nil
	}
	claimed, err := d.cfg.Jobs.Claim(ctx, now, claims)
	if err != nil {
		return 0, err
	}
	var begun []postgres.Claimed
	for _, c := range claimed {
		l, sender := d.take(c.ControllerID, now)
		if c.ControllerID == postgres.EvaluationLane {
			begun = append(begun, c)
			continue
		}
		d.running.Go(func() {
			defer d.finish(l, 1)
			d.handleLogged(ctx, c, l, sender)
		})
	}
	for batch := range slices.Chunk(begun, evaluationBatch) {
		l := d.laneOf(postgres.EvaluationLane)
		d.running.Go(func() {
			defer d.finish(l, len(batch))
			d.evaluate(ctx, batch, l)
		})
	}
	return pause, nil
}

// evaluate evaluates conditions and policies of new jobs, and stores the results in one transaction. If that fails, it
// handles each job by itself, so that none is held back by another.
func (d *Dispatcher) evaluate(ctx context.Context, claimed []postgres.Claimed, l *lane) {
	err := d.evaluateAll(ctx, claimed)
	if err == nil || ctx.Err() != nil {
		return
	}
	for _, c := range claimed {
		d.handleLogged(ctx, c, l, sender{})
	}
}

func (d *Dispatcher) evaluateAll(ctx context.Context, claimed []postgres.Claimed) error {
	ids := make([]int64, len(claimed))
	for i, c := range claimed {
		ids[i] = c.JobID
	}
	jobs, controllers, err := d.cfg.Jobs.LoadAll(ctx, ids)
	if err != nil {
		return err
	}
	now := d.cfg.Now()
	changes := make([]postgres.Change, 0, len(jobs))
	for _, job := range jobs {
		after, ask := d.cfg.Decider.Advance(ctx, job, nil, controllers, time.Time{}, now)
		changes = append(changes, postgres.Change{Before: job, After: after, Ask: ask, First: true})
	}
	if ctx.Err() != nil {
		return ctx.Err() // what was evaluated does not count
	}
	return d.cfg.Jobs.SaveAll(ctx, changes)
}

func (d *Dispatcher) handleLogged(ctx context.Context, c postgres.Claimed, l *lane, with sender) {
	if err := d.handle(ctx, c, l, with); err != nil && ctx.Err() == nil {
		d.cfg.Logger.WarnContext(ctx, "asking a controller failed; it is asked again when the lease has ended",
			slog.Int64(logkey.JobID, c.JobID), slog.Int64(logkey.ControllerID, c.ControllerID), logkey.Error(err))
	}
}

func (d *Dispatcher) laneOf(controllerID int64) *lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lanes[controllerID]
}

// claims returns what this replica may take now.
func (d *Dispatcher) claims(found []postgres.Lane, now time.Time) []postgres.Claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := map[int64]bool{}
	var claims []postgres.Claim
	for _, f := range found {
		known[f.Controller.ID] = true
		l := d.lanes[f.Controller.ID]
		if l == nil {
			l = &lane{}
			d.lanes[f.Controller.ID] = l
		}
		l.update(f.Controller, d.cfg.Network)
		if f.NextDue.IsZero() || f.NextDue.After(now) {
			continue
		}
		if n := l.free(now); n > 0 {
			claims = append(claims, postgres.Claim{
				ControllerID: f.Controller.ID, Count: n, Lease: l.requestTimeout() + d.cfg.LeaseMargin,
			})
		}
	}
	open := 0
	for id, l := range d.lanes {
		if !known[id] && l.running == 0 && !l.breaker.open() {
			l.close()
			delete(d.lanes, id)
			continue
		}
		if l.breaker.open() {
			open++
		}
	}
	d.cfg.Metrics.breakers.Set(float64(open))
	return claims
}

// sender has a client for one revision of a controller.
type sender struct {
	client   *http.Client
	revision int64
}

func (d *Dispatcher) take(controllerID int64, now time.Time) (*lane, sender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[controllerID]
	l.running++
	l.spend(now)
	return l, sender{l.http, l.controller.Revision}
}

// finish counts n questions of a lane that are no longer asked.
func (d *Dispatcher) finish(l *lane, n int) {
	d.mu.Lock()
	l.running -= n
	d.mu.Unlock()
	select {
	case d.finished <- struct{}{}:
	default:
	}
}

// handle evaluates what changed for a job, or asks its controller.
func (d *Dispatcher) handle(ctx context.Context, c postgres.Claimed, l *lane, with sender) error {
	job, controllers, found, err := d.cfg.Jobs.Load(ctx, c.JobID)
	if err != nil || !found || !job.Open() {
		return err
	}
	now := d.cfg.Now()
	after, ask := d.cfg.Decider.Advance(ctx, job, nil, controllers, time.Time{}, now)
	if c.ControllerID == postgres.EvaluationLane {
		return d.cfg.Jobs.SaveAll(ctx, []postgres.Change{{Before: job, After: after, Ask: ask, First: true}})
	}
	if !decide.Same(job, after) {
		return ignoreConflict(d.cfg.Jobs.Save(ctx, job, after, ask, nil))
	}
	if !job.Asks(c.Question) || !now.Before(job.AnswerBy) {
		return nil // others have changed the job, or end it
	}
	i := slices.IndexFunc(controllers, func(k controller.Controller) bool { return k.ID == c.ControllerID })
	if i < 0 || controllers[i].Webhook == nil || controllers[i].Revision != with.revision || with.client == nil {
		// The controller has just changed: the next round has its new settings.
		return d.cfg.Jobs.ReleaseClaim(ctx, c, now)
	}
	return d.ask(ctx, job, c, controllers[i], l, with.client)
}

// ignoreConflict ignores that others have changed the job: they have stored its next question, too.
func ignoreConflict(err error) error {
	if errors.Is(err, postgres.ErrConflict) {
		return nil
	}
	return err
}

// ask sends a request and records what became of it.
func (d *Dispatcher) ask(
	ctx context.Context, job decide.Job, c postgres.Claimed, by controller.Controller, l *lane, client *http.Client,
) error {
	secrets, err := controller.OpenSecrets(by, d.cfg.Key, d.cfg.Now())
	if err != nil {
		return err
	}
	step := chain.Outstanding(job.State)
	r := request{
		Question: c.Question, jobID: job.JobID, webhook: *by.Webhook, secrets: secrets,
		body: payload.Encode(step.Payload), header: map[string][]string{}, canAnswerLater: d.cfg.PublicURL != "",
	}
	attempt := postgres.Attempt{
		JobID: job.JobID, Question: c.Question, SentAt: d.cfg.Now(), ExpiresAt: job.AnswerBy,
	}
	if d.cfg.PublicURL != "" {
		d.addTokens(&r, &attempt)
	}
	id, err := d.cfg.Jobs.BeginAttempt(ctx, attempt)
	if err != nil {
		return err
	}
	start := time.Now()
	got := send(ctx, client, r, d.cfg.Now)
	if ctx.Err() != nil {
		// The service stops: another replica asks again at once.
		recordCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		if _, failed := got.input.(chain.Failed); failed {
			return d.cfg.Jobs.ReleaseClaim(recordCtx, c, d.cfg.Now())
		}
		return d.record(recordCtx, c, id, got)
	}
	d.cfg.Metrics.observe(got, time.Since(start))
	d.mu.Lock()
	l.breaker.record(got.responded, d.cfg.Now())
	d.mu.Unlock()
	return d.record(ctx, c, id, got)
}

// addTokens adds new tokens to a request, and their hashes to its attempt.
func (d *Dispatcher) addTokens(r *request, attempt *postgres.Attempt) {
	token, hash := callback.New(callback.Subject{JobID: r.jobID, ControllerID: r.ControllerID, Attempt: r.Attempt})
	read, readHash := jobtoken.New()
	attempt.CallbackHash, attempt.ReadHash = hash[:], readHash[:]
	r.header.Set(HeaderAPIURL, d.cfg.PublicURL+jobtoken.Path)
	r.header.Set(HeaderJobToken, read.Reveal())
	r.header.Set(HeaderCallbackURL, fmt.Sprintf("%s/admission/v1/callbacks/%d/%d/%d", d.cfg.PublicURL, r.jobID,
		r.ControllerID, r.Attempt))
	r.header.Set(HeaderCallbackToken, token.Reveal())
}

// record applies what became of a request.
func (d *Dispatcher) record(ctx context.Context, c postgres.Claimed, attemptID int64, got response) error {
	if got.input == nil {
		return d.cfg.Jobs.AwaitCallback(ctx, c, attemptID, d.cfg.Now())
	}
	return Apply(ctx, d.cfg.Jobs, d.cfg.Decider, Input{
		JobID: c.JobID, Input: got.input, RetryAfter: got.retryAfter, At: d.cfg.Now(),
		With: postgres.EndAttempt(attemptID, got.result, d.cfg.Now()),
	})
}
