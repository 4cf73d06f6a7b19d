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

	"lockstep.internal/libs/service"
)

// Conn is a connection that comes back for ever. It is a *nats.Conn with health; end it with
// Shutdown.
type Conn struct {
	*nats.Conn

	logger     *slog.Logger
	violations violations
	closed     chan struct{} // closed when the connection is closed for good

	mu      sync.Mutex
	lastErr error     // why the last attempt failed; nil while connected
	since   time.Time // of the outage
	slow    uint64    // times that a subscription was found slow
	ending  bool      // Shutdown was called
}

// Connect starts to connect and returns without waiting for success, at the latest after one
// attempt at each server. An error means that the configuration cannot work, or that ctx ended.
// More options may be given for tests; they cannot replace the handlers.
func Connect(ctx context.Context, cfg Config, logger *slog.Logger, more ...nats.Option) (*Conn, error) {
	logger = logger.With(slog.String("nats", cfg.URL.String()))
	options, err := cfg.options(logger)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	c := &Conn{logger: logger, closed: make(chan struct{}), since: time.Now()}
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
		logger.InfoContext(ctx, "connected to NATS", slog.String("server", c.ConnectedUrlRedacted()))
	} else {
		logger.WarnContext(ctx, "NATS cannot be reached, trying on", slog.String("error", errorText(c.reason())))
	}
	return c, nil
}

func (c *Conn) handlers() []nats.Option {
	return []nats.Option{
		nats.ConnectHandler(func(nc *nats.Conn) { c.back(nc, "connected to NATS") }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.back(nc, "connected to NATS again") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.lost(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			c.mu.Lock()
			c.lastErr = err
			c.mu.Unlock()
			c.logger.Debug("NATS cannot be reached", slog.String("error", errorText(err)))
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { c.trouble(sub, err) }),
		nats.LameDuckModeHandler(func(*nats.Conn) { c.logger.Info("the NATS server is about to shut down") }),
	}
}

func (c *Conn) back(nc *nats.Conn, message string) {
	c.mu.Lock()
	c.lastErr = nil
	c.mu.Unlock()
	c.logger.Info(message, slog.String("server", nc.ConnectedUrlRedacted()))
}

func (c *Conn) lost(err error) {
	c.mu.Lock()
	c.lastErr, c.since = err, time.Now()
	ending := c.ending
	c.mu.Unlock()
	if !ending {
		c.logger.Warn("the connection to NATS is lost, trying to get it back", slog.String("error", errorText(err)))
	}
}

// trouble takes errors that belong to no call.
func (c *Conn) trouble(sub *nats.Subscription, err error) {
	attrs := []any{slog.String("error", err.Error())}
	if sub != nil {
		attrs = append(attrs, slog.String("subject", sub.Subject))
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		c.violations.add(err, time.Now())
		c.logger.Error("NATS denied a permission", attrs...)
	case errors.Is(err, nats.ErrSlowConsumer):
		c.mu.Lock()
		c.slow++
		c.mu.Unlock()
		c.logger.Warn("messages are dropped: the subscription is slower than its subject", attrs...)
	case errors.Is(err, nats.ErrAuthorization),
		errors.Is(err, nats.ErrAuthExpired),
		errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired):
		c.mu.Lock()
		c.lastErr = err
		c.mu.Unlock()
		c.logger.Error("NATS refuses our credentials, trying on", attrs...)
	default:
		c.logger.Warn("NATS reported an error", attrs...)
	}
}

// reason is why there is no connection.
func (c *Conn) reason() error {
	if err := c.LastError(); err != nil {
		return err //nolint:wrapcheck // callers say what it is about
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr
}

// Check asks the server for an answer and says why there is none. Denied permissions of the last
// minutes are returned as service.Degraded: the connection works, what it is used for does not.
func (c *Conn) Check(ctx context.Context) error {
	if !c.IsConnected() {
		c.mu.Lock()
		since := c.since
		c.mu.Unlock()
		return fmt.Errorf(
			"not connected to NATS for %s, trying on: %s", time.Since(since).Round(time.Second), errorText(c.reason()),
		)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := c.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("NATS does not answer: %w", err)
	}
	return service.Degraded(c.PermissionDenied())
}

// JetStream returns the JetStream API of this connection.
func (c *Conn) JetStream(options ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
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
		c.Close() // there is nothing to drain without a connection
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

// Part is the connection as a part of a service, named nats: ready while Check agrees, shut down
// after the parts that use it. A connection that is closed for good ends the service.
func (c *Conn) Part() service.Part {
	return service.Part{
		Name: "nats",
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			select {
			case <-ctx.Done():
				return c.Shutdown(self.DrainContext())
			case <-c.closed:
				return service.Permanent(fmt.Errorf("the connection to NATS is closed: %s", errorText(c.reason())))
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
