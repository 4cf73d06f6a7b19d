package natsconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
)

// Conn is a *nats.Conn that reconnects for ever, with health checks and metrics. Close it with Shutdown.
type Conn struct {
	*nats.Conn

	logger     *slog.Logger
	key        string // public nkey, or ""
	violations violations
	closed     chan struct{} // closed when the connection is closed for good
	refused    chan struct{} // closed when refusal is set
	failed     chan struct{} // closed by failOnce
	failOnce   sync.Once

	mu      sync.Mutex
	lastErr error                // error of the last attempt; nil while connected
	since   time.Time            // of the outage
	slow    uint64               // number of slow consumer errors
	errors  uint64               // number of other errors that belong to no call
	logged  map[string]time.Time // error → when it was logged
	ending  bool                 // Shutdown was called
	refusal error                // the first
}

// Connect starts to connect and returns after at most one attempt at each server. It does not wait for success. An
// error means that the configuration cannot work, or that ctx ended. more has options of the client that [Config] does
// not have, such as the credentials of an agent. They cannot replace the handlers.
func Connect(ctx context.Context, cfg Config, logger *slog.Logger, more ...nats.Option) (*Conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("connect to NATS: %w", context.Cause(ctx))
	}
	logger = logger.With(slog.String(logkey.NATS, cfg.URL.String()))
	options, err := cfg.options(logger)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	c := &Conn{
		logger: logger, closed: make(chan struct{}), refused: make(chan struct{}), failed: make(chan struct{}),
		since: time.Now(), logged: map[string]time.Time{},
	}
	if c.key, err = cfg.publicKey(); err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	options = append(append(options, more...), c.handlers()...)
	connected := make(chan error, 1)
	go func() {
		nc, err := nats.Connect(cfg.URL.Reveal(), options...)
		c.Conn = nc
		connected <- err
	}()
	select {
	case err := <-connected:
		if err != nil {
			return nil, fmt.Errorf("connect to NATS: %w", err)
		}
	case <-ctx.Done():
		go func() {
			if <-connected == nil {
				c.Close()
			}
		}()
		return nil, fmt.Errorf("connect to NATS: %w", context.Cause(ctx))
	}
	if c.IsConnected() {
		logger.InfoContext(ctx, "connected to NATS", slog.String(logkey.Server, c.ConnectedUrlRedacted()))
	} else {
		logger.WarnContext(ctx, "not connected to NATS, retrying",
			slog.String(logkey.ErrorKey, c.reason()))
	}
	return c, nil
}

func (c *Conn) handlers() []nats.Option {
	return []nats.Option{
		nats.ConnectHandler(func(nc *nats.Conn) { c.onConnected(nc, "connected to NATS") }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.onConnected(nc, "connected to NATS again") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.lost(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.attemptFailed(err) }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { c.onAsyncError(sub, err) }),
		nats.LameDuckModeHandler(func(*nats.Conn) { c.logger.Info("the NATS server is about to shut down") }),
	}
}

func (c *Conn) onConnected(nc *nats.Conn, message string) {
	c.mu.Lock()
	c.lastErr = nil
	c.mu.Unlock()
	c.logger.Info(message, slog.String(logkey.Server, nc.ConnectedUrlRedacted()))
}

func (c *Conn) lost(err error) {
	c.mu.Lock()
	c.lastErr, c.since = err, time.Now()
	ending := c.ending
	c.mu.Unlock()
	if !ending {
		c.logger.Warn("disconnected from NATS, reconnecting", slog.String(logkey.ErrorKey, errorText(err)))
	}
}

func (c *Conn) attemptFailed(err error) {
	if errors.Is(err, nats.ErrNoServers) {
		return // it hides why the first attempts failed: the next one has the reason
	}
	c.mu.Lock()
	c.lastErr = err
	c.mu.Unlock()
	if isRefused(err) {
		c.refuse(c.credentialsRefused(err))
	}
	c.failOnce.Do(func() { close(c.failed) })
	c.logger.Debug("NATS cannot be reached", slog.String(logkey.ErrorKey, errorText(err)))
}

// onAsyncError handles errors that belong to no call.
func (c *Conn) onAsyncError(sub *nats.Subscription, err error) {
	attrs := []any{logkey.Error(err)}
	if sub != nil {
		attrs = append(attrs, slog.String(logkey.Subject, sub.Subject))
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		c.violations.add(err, time.Now())
		c.refuse(refusal{violationOf(err).String(), err})
		c.logger.Error("NATS denied a permission", attrs...)
	case errors.Is(err, nats.ErrSlowConsumer):
		c.mu.Lock()
		c.slow++
		c.mu.Unlock()
		c.logger.Warn("dropped messages: the consumer is slow", attrs...)
	case isRefused(err):
		c.mu.Lock()
		c.lastErr = err
		c.mu.Unlock()
		c.refuse(c.credentialsRefused(err))
		c.logger.Error("NATS rejected the credentials, retrying", logkey.Error(c.explain(err)))
	default:
		c.mu.Lock()
		c.errors++
		logged := c.shouldLog(err.Error(), time.Now())
		c.mu.Unlock()
		if logged {
			c.logger.Warn("NATS reported an error; for a minute, further ones like it are only counted", attrs...)
		}
	}
}

// isRefused reports whether a server refused the credentials.
func isRefused(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// refusal is an error in words.
type refusal struct {
	text  string
	cause error
}

func (r refusal) Error() string { return r.text }

func (r refusal) Unwrap() error { return r.cause }

func (c *Conn) credentialsRefused(err error) refusal {
	if c.key == "" || !errors.Is(err, nats.ErrAuthorization) {
		return refusal{"NATS refused the credentials: " + err.Error(), err}
	}
	return refusal{"NATS refused the key: " + c.unknownKey(), err}
}

func (c *Conn) refuse(r refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal == nil {
		c.refusal = r
		close(c.refused)
	}
}

// Failed is closed when an attempt to connect has failed and [Conn.DisconnectReason] has the reason. Programs that run
// for ever try again; commands of people end if they were never connected.
func (c *Conn) Failed() <-chan struct{} { return c.failed }

// Refused is closed when a server has refused the credentials or a permission. [Conn.Refusal] has the reason. Programs
// that run for ever try again; commands of people end.
func (c *Conn) Refused() <-chan struct{} { return c.refused }

// Refusal returns the first refusal, or nil. It wraps [nats.ErrPermissionViolation] for a permission.
func (c *Conn) Refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusal
}

const (
	// errorLogInterval is the shortest time between two log entries about the same error.
	errorLogInterval = time.Minute
	// maxLoggedErrors bounds the errors that are known to be logged.
	maxLoggedErrors = 64
)

// shouldLog reports whether an error was not logged for a minute. The caller holds mu.
func (c *Conn) shouldLog(text string, now time.Time) bool {
	if now.Before(c.logged[text].Add(errorLogInterval)) {
		return false
	}
	if len(c.logged) >= maxLoggedErrors {
		clear(c.logged)
	}
	c.logged[text] = now
	return true
}

// DisconnectReason returns the last connection error, nil for none.
func (c *Conn) DisconnectReason() error {
	if err := c.LastError(); err != nil {
		return err //nolint:wrapcheck // callers add context
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr
}

func (c *Conn) reason() string { return errorText(c.explain(c.DisconnectReason())) }

// explain adds the public key that the server does not know to an error of authorization.
func (c *Conn) explain(err error) error {
	if c.key == "" || !errors.Is(err, nats.ErrAuthorization) {
		return err
	}
	return fmt.Errorf("%w: %s", err, c.unknownKey())
}

func (c *Conn) unknownKey() string {
	return fmt.Sprintf("the configuration of the server does not have the key %s: run lockstep nats init and restart NATS",
		c.key)
}

// Check sends a ping and returns an error if there is no response. Permission violations of the last minutes are
// returned as service.Degraded: the connection works, its use does not.
func (c *Conn) Check(ctx context.Context) error {
	if !c.IsConnected() {
		c.mu.Lock()
		since := c.since
		c.mu.Unlock()
		return fmt.Errorf(
			"not connected to NATS for %s, retrying: %s", time.Since(since).Round(time.Second), c.reason(),
		)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := c.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("NATS does not answer: %w", err)
	}
	return service.Degraded(c.PermissionDenied())
}

// requestTimeout bounds a request to JetStream without a deadline of its own. Nobody answers while the servers elect a
// leader, so a request must soon be sent again.
const requestTimeout = 2 * time.Second

// JetStream returns the JetStream API of this connection. A request fails after 2 s, unless its context has a deadline.
func (c *Conn) JetStream(options ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	options = append([]jetstream.JetStreamOpt{jetstream.WithDefaultTimeout(requestTimeout)}, options...)
	js, err := jetstream.New(c.Conn, options...)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return js, nil
}

// Shutdown drains the connection and closes it, at the latest when ctx ends. It may be called
// twice.
func (c *Conn) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	if err := c.Drain(); err != nil {
		c.Close() // not connected: nothing to drain
	}
	select {
	case <-c.closed:
		return nil
	case <-ctx.Done():
		c.Close()
		<-c.closed
		return fmt.Errorf("drain the connection to NATS: %w", context.Cause(ctx))
	}
}

// Part is the connection as a part of a service, named nats. It is ready while Check succeeds, and shut down after
// the parts that use it. A connection that is closed for good ends the service.
func (c *Conn) Part() service.Part {
	return service.Part{
		Name: "nats",
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			select {
			case <-ctx.Done():
				return c.Shutdown(self.DrainContext())
			case <-c.closed:
				return service.Permanent(fmt.Errorf("the connection to NATS is closed: %s", c.reason()))
			}
		},
		Check: c.Check,
	}
}

func errorText(err error) string {
	if err == nil {
		return "no server answers"
	}
	return err.Error()
}
