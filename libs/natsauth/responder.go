package natsauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
)

const (
	calloutSubject = "$SYS.REQ.USER.AUTH"
	calloutQueue   = "lockstep-callout"

	defaultLifetime   = time.Hour
	minLifetime       = time.Second
	defaultConcurrent = 32
	drainTimeout      = 5 * time.Second
	flushTimeout      = 5 * time.Second
)

// Responder answers authorization requests of the NATS auth callout. Any number of replicas may run: they share one
// queue, so each request goes to one. Without a responder, connected clients stay connected and new clients retry.
type Responder struct {
	// Conn is connected as [PrincipalCallout]. The responder does not close it. Required.
	Conn *nats.Conn
	// Keys are those that the server's configuration names. Required.
	Keys CalloutKeys
	// Cell is the cell whose subjects are permitted. Required.
	Cell topology.Cell
	// Authenticator knows the credentials. Required.
	Authenticator Authenticator
	// Logger receives refusals and failures. Required.
	Logger *slog.Logger
	// Lifetime is the maximum lifetime of a connection. The client then reconnects by itself. Up to a quarter is
	// subtracted at random. Defaults to one hour; at least one second, in seconds.
	Lifetime time.Duration
	// Concurrent bounds the concurrent requests. Other requests wait until the server's timeout. Defaults to 32.
	Concurrent int

	// started is created by the first call of Run or Started.
	startedOnce sync.Once
	started     chan struct{}
}

// ErrInvalidResponder is wrapped by what [Responder.Run] returns for fields that it cannot run
// with.
var ErrInvalidResponder = errors.New("invalid responder")

// Started returns a channel that is closed when the responder is subscribed: from then on clients can connect.
func (r *Responder) Started() <-chan struct{} {
	return r.startedChannel()
}

func (r *Responder) startedChannel() chan struct{} {
	r.startedOnce.Do(func() { r.started = make(chan struct{}) })

	return r.started
}

func (r *Responder) validate() error {
	switch {
	case r.Conn == nil:
		return fmt.Errorf("%w: no connection", ErrInvalidResponder)
	case r.Keys.Issuer == nil || r.Keys.Exchange == nil:
		return fmt.Errorf("%w: no keys", ErrInvalidResponder)
	case r.Authenticator == nil:
		return fmt.Errorf("%w: no authenticator", ErrInvalidResponder)
	case r.Logger == nil:
		return fmt.Errorf("%w: no logger", ErrInvalidResponder)
	case topology.ValidateCell(string(r.Cell)) != nil:
		return fmt.Errorf("%w: %w", ErrInvalidResponder, topology.ValidateCell(string(r.Cell)))
	case r.Lifetime != 0 && r.Lifetime < minLifetime:
		return fmt.Errorf("%w: lifetime %s is below %s", ErrInvalidResponder, r.Lifetime, minLifetime)
	case r.Concurrent < 0:
		return fmt.Errorf("%w: concurrent %d is negative", ErrInvalidResponder, r.Concurrent)
	default:
		return nil
	}
}

// Run answers requests until ctx ends, then finishes the running ones. It may be called once.
func (r *Responder) Run(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}

	subscription, err := r.Conn.QueueSubscribeSync(calloutSubject, calloutQueue)
	if err != nil {
		return fmt.Errorf("subscribe to authorization requests: %w", err)
	}

	if err := r.awaitSubscribed(ctx); err != nil {
		return errors.Join(fmt.Errorf("subscribe to authorization requests: %w", err), subscription.Unsubscribe())
	}

	concurrent := int64(defaultConcurrent)
	if r.Concurrent > 0 {
		concurrent = int64(r.Concurrent)
	}

	work := &calloutWork{
		responder: r,
		limiter:   newLimiter(time.Now),
		slots:     semaphore.NewWeighted(concurrent),
	}

	err = work.receive(ctx, subscription)

	if drainErr := subscription.Drain(); drainErr == nil {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()

		_ = work.receive(drain, subscription)
	}

	work.running.Wait()

	if ctx.Err() != nil {
		return nil
	}

	return fmt.Errorf("take authorization request: %w", err)
}

// awaitSubscribed waits until the server has confirmed the subscription, also through outages.
func (r *Responder) awaitSubscribed(ctx context.Context) error {
	for ctx.Err() == nil {
		flush, cancel := context.WithTimeout(ctx, flushTimeout)
		err := r.Conn.FlushWithContext(flush)

		cancel()

		if err == nil {
			close(r.startedChannel())

			return nil
		}

		if r.Conn.IsClosed() {
			return err //nolint:wrapcheck // wrapped by the caller
		}
	}

	return nil
}

// calloutWork is one run of a responder.
type calloutWork struct {
	responder *Responder
	limiter   *limiter
	slots     *semaphore.Weighted
	running   sync.WaitGroup
}

// receive starts a worker per request until ctx or the subscription ends. It always returns an error.
func (w *calloutWork) receive(ctx context.Context, subscription *nats.Subscription) error {
	for {
		request, err := subscription.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrSlowConsumer) {
			w.responder.Logger.WarnContext(ctx, "authorization requests were dropped: too many clients at once")

			continue
		}

		if err != nil {
			return err //nolint:wrapcheck // wrapped by the caller
		}

		if err := w.slots.Acquire(ctx, 1); err != nil {
			return err //nolint:wrapcheck // wrapped by the caller
		}

		w.running.Go(func() {
			defer w.slots.Release(1)

			work, cancel := context.WithTimeout(context.WithoutCancel(ctx), authTimeout)
			defer cancel()

			w.answer(work, request)
		})
	}
}

func (w *calloutWork) answer(ctx context.Context, message *nats.Msg) {
	r := w.responder

	request, err := openRequest(r.Keys.Exchange, message)
	if err != nil {
		// The request is not from a server: send no response.
		r.Logger.WarnContext(ctx, "dropped an invalid authorization request", logkey.Error(err))

		return
	}

	var user string

	principal, err := w.decide(ctx, request.credentials)
	if err == nil {
		user, err = r.userToken(request.userKey, principal, time.Now())
	}

	switch {
	case err == nil:
		r.Logger.DebugContext(ctx, "client authorized",
			slog.Any(logkey.Client, request.credentials), slog.String(logkey.User, principal.User()))
	case errors.Is(err, ErrRefused):
		r.Logger.WarnContext(ctx, "client refused",
			slog.Any(logkey.Client, request.credentials), logkey.Error(err))
	default:
		r.Logger.ErrorContext(ctx, "rejected a client: its credentials could not be checked",
			slog.Any(logkey.Client, request.credentials), logkey.Error(err))
	}

	answer, err := sealAnswer(r.Keys, request, user)
	if err != nil {
		r.Logger.ErrorContext(ctx, "authorization response not created", logkey.Error(err))

		return
	}

	if err := message.Respond(answer); err != nil {
		r.Logger.ErrorContext(ctx, "authorization answer could not be sent", logkey.Error(err))
	}
}

// decide returns the principal, or why there is none.
func (w *calloutWork) decide(ctx context.Context, credentials Credentials) (Principal, error) {
	if err := checkSizes(credentials); err != nil {
		return Principal{}, err
	}

	from := source{host: credentials.Host, user: credentials.User}
	if !w.limiter.allowed(from) {
		return Principal{}, fmt.Errorf("%w: too many refusals in %s", ErrRefused, limiterWindow)
	}

	principal, err := w.responder.Authenticator.Authenticate(ctx, credentials)
	if errors.Is(err, ErrRefused) {
		w.limiter.fail(from)
	}

	if err != nil {
		return Principal{}, fmt.Errorf("authenticate: %w", err)
	}

	if err := principal.Validate(); err != nil {
		return Principal{}, fmt.Errorf("authenticate: %w", err)
	}

	return principal, nil
}
