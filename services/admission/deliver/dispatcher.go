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
	// evaluations is the number of new jobs that a replica evaluates at the same time, and batch that of a transaction.
	evaluations, batch = 200, 50
	// evaluationTime is the time after which a transaction leaves the other jobs to the next round: the leases must not
	// end while slow policies are evaluated.
	evaluationTime = time.Second
	// recorders is the number of transactions with answers at the same time.
	recorders = 2
	// coalesce is the time in which several ends of requests and notifications lead to one round.
	coalesce = 2 * time.Millisecond
	// leaseMargin is the time that a replica has beside the request itself, for policies and the database.
	leaseMargin = 5 * time.Second
	// conflicts is how often a result is applied again to a job that others change.
	conflicts = 10
	// staleAfter is how long the database must fail before Check does.
	staleAfter = 10 * time.Second
	// recordTimeout bounds the transactions of answers, also while the service stops. After it, the leases end.
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
	// answers waits for a transaction that stores them.
	answers chan answered
}

// New returns a dispatcher; Run starts it.
func New(cfg Config) *Dispatcher {
	if cfg.LeaseMargin == 0 {
		cfg.LeaseMargin = leaseMargin
	}
	return &Dispatcher{cfg: cfg, lanes: map[int64]*lane{}, finished: make(chan struct{}, 1), answers: make(chan answered)}
}

// Run asks controllers until ctx ends, and then waits until the results of the last requests are recorded.
func (d *Dispatcher) Run(ctx context.Context, ready func()) error {
	changes := d.cfg.Changes.Subscribe()
	defer changes.Close()
	var recording sync.WaitGroup
	for range recorders {
		recording.Go(func() { d.record(context.WithoutCancel(ctx)) })
	}
	defer func() {
		d.running.Wait() // before the last answer
		close(d.answers)
		recording.Wait()
	}()
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
	var begun, asked []taken
	for _, c := range claimed {
		t := d.take(c, now)
		if c.ControllerID == postgres.EvaluationLane {
			begun = append(begun, t)
		} else {
			asked = append(asked, t)
		}
	}
	for _, questions := range [][]taken{begun, asked} {
		for some := range slices.Chunk(questions, batch) {
			d.running.Go(func() { d.handle(ctx, some) })
		}
	}
	return pause, nil
}

// handle evaluates what changed for jobs, and asks their controllers. If that fails, it handles each job by itself, so
// that none is held back by another.
func (d *Dispatcher) handle(ctx context.Context, questions []taken) {
	err := d.handleAll(ctx, questions)
	if err != nil && len(questions) > 1 && ctx.Err() == nil {
		for _, t := range questions {
			d.handle(ctx, []taken{t})
		}
		return
	}
	if err == nil {
		return
	}
	for _, t := range questions {
		d.failed(ctx, t.Claimed, err)
		d.finish(t.lane)
	}
}

// failed logs that a question was not handled.
func (d *Dispatcher) failed(ctx context.Context, c postgres.Claimed, err error) {
	if ctx.Err() == nil {
		d.cfg.Logger.WarnContext(ctx, "asking a controller failed; it is asked again when the lease has ended",
			slog.Int64(logkey.JobID, c.JobID), slog.Int64(logkey.ControllerID, c.ControllerID), logkey.Error(err))
	}
}

// handleAll stores what it evaluates in one transaction, and the attempts in another. It has sent nothing if it fails.
func (d *Dispatcher) handleAll(ctx context.Context, questions []taken) error {
	ids := make([]int64, len(questions))
	for i, t := range questions {
		ids[i] = t.JobID
	}
	jobs, controllers, err := d.cfg.Jobs.LoadAll(ctx, ids)
	if err != nil {
		return err
	}
	now := d.cfg.Now()
	var changes []postgres.Change
	var sent []outgoing
	var attempts []postgres.Attempt
	var idle, left []taken
	start := time.Now()
	p := preparation{d: d, controllers: controllers, secrets: map[int64][]seal.Value{}, now: now}
	for i, t := range questions {
		if i > 0 && time.Since(start) > evaluationTime {
			left = questions[i:]
			break
		}
		job, open := jobs[t.JobID]
		if !open {
			idle = append(idle, t)
			continue
		}
		after, ask := d.cfg.Decider.Advance(ctx, job, nil, controllers, time.Time{}, now)
		first := t.ControllerID == postgres.EvaluationLane
		if first || !decide.Same(job, after) {
			changes = append(changes, postgres.Change{Before: job, After: after, Ask: ask, First: first})
			idle = append(idle, t)
			continue
		}
		o, attempt, ok, err := p.prepare(ctx, t, job)
		if err != nil {
			d.failed(ctx, t.Claimed, err)
		}
		if !ok {
			idle = append(idle, t)
			continue
		}
		sent, attempts = append(sent, o), append(attempts, attempt)
	}
	if ctx.Err() != nil {
		return ctx.Err() // what was evaluated does not count
	}
	if _, err := d.cfg.Jobs.SaveAll(ctx, changes, nil); err != nil {
		return err // others that have changed a job have stored its next question, too
	}
	if len(attempts) > 0 {
		recorded, err := d.cfg.Jobs.BeginAttempts(ctx, attempts)
		if err != nil {
			return err
		}
		for _, o := range sent {
			o.attemptID = recorded[o.JobID]
			d.running.Go(func() { d.ask(ctx, o) })
		}
	}
	for _, t := range left {
		if err := d.cfg.Jobs.ReleaseClaim(ctx, t.Claimed, now); err != nil {
			d.failed(ctx, t.Claimed, err)
		}
	}
	for _, t := range slices.Concat(idle, left) {
		d.finish(t.lane)
	}
	return nil
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

// taken is a question that this replica has taken, with its lane.
type taken struct {
	postgres.Claimed

	lane *lane
	// client is that for a revision of the controller.
	client   *http.Client
	revision int64
}

// outgoing is a question with its request, whose attempt is recorded.
type outgoing struct {
	taken

	request   request
	attemptID int64
}

// answered is a question with what became of its request.
type answered struct {
	postgres.Claimed
	response

	attemptID int64
	at        time.Time
}

func (a answered) ended() postgres.Ended {
	result := a.result
	if a.input == nil {
		result = "the controller answers later"
	}
	return postgres.Ended{AttemptID: a.attemptID, Status: a.status, Result: result, At: a.at}
}

func (d *Dispatcher) take(c postgres.Claimed, now time.Time) taken {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[c.ControllerID]
	l.running++
	l.spend(now)
	return taken{Claimed: c, lane: l, client: l.http, revision: l.controller.Revision}
}

// finish counts a question of a lane that is no longer asked.
func (d *Dispatcher) finish(l *lane) {
	d.mu.Lock()
	l.running--
	d.mu.Unlock()
	select {
	case d.finished <- struct{}{}:
	default:
	}
}

// ignoreConflict ignores that others have changed the job: they have stored its next question, too.
func ignoreConflict(err error) error {
	if errors.Is(err, postgres.ErrConflict) {
		return nil
	}
	return err
}

// preparation prepares requests about several jobs.
type preparation struct {
	d           *Dispatcher
	controllers []controller.Controller
	// secrets by controllers: to open one takes as long as all else that the service does for a request.
	secrets map[int64][]seal.Value
	now     time.Time
}

// prepare returns the request and the attempt of a question; false if it is not to be asked now.
func (p preparation) prepare(
	ctx context.Context, t taken, job decide.Job,
) (o outgoing, attempt postgres.Attempt, ok bool, err error) {
	if !job.Asks(t.Question) || !p.now.Before(job.AnswerBy) {
		return o, attempt, false, nil // others have changed the job, or end it
	}
	i := slices.IndexFunc(p.controllers, func(k controller.Controller) bool { return k.ID == t.ControllerID })
	if i < 0 || p.controllers[i].Webhook == nil || p.controllers[i].Revision != t.revision || t.client == nil {
		// The controller has just changed: the next round has its new settings.
		return o, attempt, false, p.d.cfg.Jobs.ReleaseClaim(ctx, t.Claimed, p.now)
	}
	secrets, opened := p.secrets[t.ControllerID]
	if !opened {
		if secrets, err = controller.OpenSecrets(p.controllers[i], p.d.cfg.Key, p.now); err != nil {
			return o, attempt, false, err
		}
		p.secrets[t.ControllerID] = secrets
	}
	o = outgoing{taken: t, request: request{
		Question: t.Question, jobID: job.JobID, webhook: *p.controllers[i].Webhook, secrets: secrets,
		body: payload.Encode(chain.Outstanding(job.State).Payload), header: map[string][]string{},
		canAnswerLater: p.d.cfg.PublicURL != "",
	}}
	attempt = postgres.Attempt{JobID: job.JobID, Question: t.Question, SentAt: p.now, ExpiresAt: job.AnswerBy}
	if p.d.cfg.PublicURL != "" {
		p.d.addTokens(&o.request, &attempt)
	}
	return o, attempt, true, nil
}

// ask sends a request, and lets what became of it be recorded. Meanwhile the controller is asked about the next job.
func (d *Dispatcher) ask(ctx context.Context, o outgoing) {
	start := time.Now()
	got := send(ctx, o.client, o.request, d.cfg.Now)
	now := d.cfg.Now()
	if _, failed := got.input.(chain.Failed); failed && ctx.Err() != nil {
		// The service stops: another replica asks again at once.
		recordCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		if err := d.cfg.Jobs.ReleaseClaim(recordCtx, o.Claimed, now); err != nil {
			d.failed(recordCtx, o.Claimed, err)
		}
		d.finish(o.lane)
		return
	}
	d.cfg.Metrics.observe(got, time.Since(start))
	d.mu.Lock()
	o.lane.breaker.record(got.responded, now)
	d.mu.Unlock()
	d.finish(o.lane)
	d.answers <- answered{Claimed: o.Claimed, response: got, attemptID: o.attemptID, at: now}
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
