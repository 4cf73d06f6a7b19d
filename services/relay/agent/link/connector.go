// Package link keeps a connection with a relay.
//
// A [Connector] connects, and reconnects whenever the connection is lost. It retries without limit. Delays grow
// and are random from the first one, so that the agents of a restarted relay do not all reconnect at the same
// time. It honours a relay's Retry-After.
//
// A connection that is too old is drained after a new one is open. A draining relay closes a connection after
// its last stream, so the new one may open later. A replaced connection is closed after a time-out at the latest.
// When its context ends, a connector drains, and leaves no goroutine.
package link

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/relay/tunnel"
)

// Outcome of a connection, or of an attempt to connect.
type Outcome string

// Outcomes.
const (
	// Connected: an attempt succeeded. Refused: the relay refused it. Failed: any other error.
	Connected Outcome = "connected"
	Refused   Outcome = "refused"
	Failed    Outcome = "failed"
	// Ended: a connection has ended.
	Ended Outcome = "ended"
)

// Config of a [Connector]. All fields are required, except for Random and OnOutcome.
type Config struct {
	// Relay is the relay's URL in logs.
	Relay string
	// Dial makes a connection. A [tunnel.HandshakeError] may set the next delay.
	Dial func(ctx context.Context) (tunnel.Connection, error)
	// Accept is called with each stream that the relay opens, in a goroutine of its own.
	Accept func(s *tunnel.Session, st *tunnel.Stream)
	// OnSession runs in a goroutine of its own for each connection. Its context is done when the connection ends or
	// drains.
	OnSession func(ctx context.Context, s *tunnel.Session)
	Tunnel    tunnel.Config
	Backoff   Backoff
	// MaxAge is the age at which a connection is replaced, plus or minus 10 %; 0 means no limit.
	MaxAge time.Duration
	// DrainTimeout of a connection that was replaced.
	DrainTimeout time.Duration
	Logger       *slog.Logger
	// Random returns a number from 0 to below 1. Defaults to that of math/rand.
	Random func() float64
	// OnOutcome is called after [Connector.Status] has changed. It must be safe for concurrent use.
	OnOutcome func(Outcome)
}

// Connector keeps one connection with a relay, and drains those that it replaced.
type Connector struct {
	cfg Config
	// consecutive failures: failed attempts and short connections. Owned by Run.
	failures int
	running  sync.WaitGroup

	mu   sync.Mutex
	open int
	err  error
}

// NewConnector makes a connector. [Connector.Run] connects.
func NewConnector(cfg Config) *Connector {
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.OnOutcome == nil {
		cfg.OnOutcome = func(Outcome) {}
	}
	return &Connector{cfg: cfg}
}

// Status of a connector.
type Status struct {
	// Open connections.
	Open int
	// Err of the last failed attempt, or of the only connection when it ended; nil after a successful attempt.
	Err error
}

// Status returns the current status.
func (c *Connector) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Status{Open: c.open, Err: c.err}
}

func (c *Connector) setStatus(outcome Outcome, delta int, err error) {
	c.mu.Lock()
	c.open += delta
	if err != nil || outcome == Connected {
		c.err = err
	}
	c.mu.Unlock()
	c.cfg.OnOutcome(outcome)
}

// Run keeps a connection until ctx is done. It returns when all connections have ended; when drainCtx is done it
// closes them.
func (c *Connector) Run(ctx, drainCtx context.Context) {
	defer c.running.Wait()
	var before *session
	var delay time.Duration
	for {
		s := c.connect(ctx, drainCtx, delay)
		if replaced := before; replaced != nil {
			c.running.Go(func() { replaced.drainAfterOverlap(ctx) })
		}
		if s == nil {
			return
		}
		startedAt := time.Now()
		end := c.wait(ctx, s)
		if time.Since(startedAt) >= c.cfg.Backoff.Max {
			c.failures = 0
		}
		before, delay = nil, 0
		if end == endStopped {
			c.running.Go(s.drain)
			return
		}
		if end != endLost {
			before = s
		}
		if end != endAged {
			delay = c.nextDelay(0)
		}
	}
}

func (c *Connector) nextDelay(retryAfter time.Duration) time.Duration {
	delay := c.cfg.Backoff.Delay(c.failures, retryAfter, c.cfg.Random())
	c.failures++
	return delay
}

// connect retries until there is a session; nil when ctx is done.
func (c *Connector) connect(ctx, drainCtx context.Context, delay time.Duration) *session {
	for sleep(ctx, delay) {
		connection, err := c.cfg.Dial(ctx)
		if err == nil {
			return c.begin(ctx, drainCtx, connection)
		}
		if ctx.Err() != nil {
			return nil
		}
		outcome, retryAfter := Failed, time.Duration(0)
		if refused, ok := errors.AsType[*tunnel.HandshakeError](err); ok {
			outcome, retryAfter = Refused, refused.RetryAfter
		}
		delay = c.nextDelay(retryAfter)
		c.cfg.Logger.WarnContext(ctx, "connecting to the relay failed; retrying", slog.String(logkey.RelayURL, c.cfg.Relay),
			logkey.Error(err), slog.Duration(logkey.RetryIn, delay))
		c.setStatus(outcome, 0, err)
	}
	return nil
}

// sleep reports whether the time has passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// endReason is why a session is replaced.
type endReason int

const (
	endLost endReason = iota
	endAged
	endRelayDrains
	endStopped
)

// wait until the session is to be replaced.
func (c *Connector) wait(ctx context.Context, s *session) endReason {
	var aged <-chan time.Time
	if c.cfg.MaxAge > 0 {
		timer := time.NewTimer(jitter(c.cfg.MaxAge, c.cfg.Random()))
		defer timer.Stop()
		aged = timer.C
	}
	select {
	case <-s.Done():
		return endLost
	case <-s.PeerDraining():
		s.logger.InfoContext(ctx, "relay drains; reconnecting")
		s.stopTask() // the configuration stream must not keep the draining session open
		return endRelayDrains
	case <-aged:
		return endAged
	case <-ctx.Done():
		return endStopped
	}
}
