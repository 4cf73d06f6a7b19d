package link

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"lockstep.internal/services/relay/tunnel"
)

// Connection is one that has been made, and upgraded for a tunnel.
type Connection struct {
	// Conn is as it was dialled: a session knows by its type how to write to it.
	Conn net.Conn
	// Secret is that it is encrypted.
	Secret bool
	// RelayID and ID are what the relay calls itself and the connection.
	RelayID, ID string
}

// Outcome is what became of a connection, or of an attempt at one.
type Outcome string

// Outcomes.
const (
	// Connected is that an attempt succeeded, Refused that the relay did not want it, Failed that no relay answered.
	Connected Outcome = "connected"
	Refused   Outcome = "refused"
	Failed    Outcome = "failed"
	// Ended is that a connection has ended, for whatever reason.
	Ended Outcome = "ended"
)

// Config of a [Keeper]. All but Random and Changed is required.
type Config struct {
	// Relay is how the log calls it.
	Relay string
	// Dial makes a connection. A [tunnel.RefusedError] may say when to try again.
	Dial func(ctx context.Context) (Connection, error)
	// Accept gets each stream that the relay opens, in a goroutine of its own.
	Accept func(s *tunnel.Session, st *tunnel.Stream)
	// Attend goes along with each connection, until its context is done: it ends when the connection ends, or is to take nothing new.
	Attend func(ctx context.Context, s *tunnel.Session)
	Tunnel tunnel.Config
	Pauses Pauses
	// Age is when a connection is replaced, give or take a tenth; 0 is never.
	Age time.Duration
	// Linger is how long a connection that has been replaced may go on.
	Linger time.Duration
	Logger *slog.Logger
	// Random is from 0 to below 1. It defaults to that of math/rand.
	Random func() float64
	// Changed hears of what [Keeper.Status] says next. It may be called by several goroutines at a time.
	Changed func(Outcome)
}

// Keeper keeps one connection with a relay, and those that it replaced until they end. It is made by [NewKeeper].
type Keeper struct {
	cfg    Config
	inVain int // attempts, or connections that did not last

	work sync.WaitGroup

	mu   sync.Mutex
	open int
	err  error
}

// NewKeeper makes one that does nothing before [Keeper.Run].
func NewKeeper(cfg Config) *Keeper {
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Changed == nil {
		cfg.Changed = func(Outcome) {}
	}
	return &Keeper{cfg: cfg}
}

// Status of a keeper.
type Status struct {
	// Open connections.
	Open int
	// Err is why the last attempt failed, or the last connection ended; nil when there is one.
	Err error
}

// Status says how things are.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Status{Open: k.open, Err: k.err}
}

func (k *Keeper) note(outcome Outcome, more int, err error) {
	k.mu.Lock()
	k.open += more
	if err != nil || outcome == Connected {
		k.err = err
	}
	k.mu.Unlock()
	k.cfg.Changed(outcome)
}

// Run keeps a connection until ctx is done, and returns when all have ended, or with finish.
func (k *Keeper) Run(ctx, finish context.Context) {
	defer k.work.Wait()
	var before *session
	var pause time.Duration
	for {
		s := k.connect(ctx, finish, pause)
		if replaced := before; replaced != nil {
			k.work.Go(func() { replaced.handOver(ctx) })
		}
		if s == nil {
			return
		}
		began := time.Now()
		end := k.hold(ctx, s)
		if lasted := time.Since(began); lasted >= k.cfg.Pauses.Max {
			k.inVain = 0
		}
		before, pause = nil, 0
		if end == endLeaving {
			k.work.Go(s.leave)
			return
		}
		if end != endLost {
			before = s
		}
		if end != endAged {
			pause = k.pause(0)
		}
	}
}

// pause before the next attempt.
func (k *Keeper) pause(after time.Duration) time.Duration {
	pause := k.cfg.Pauses.Pause(k.inVain, after, k.cfg.Random())
	k.inVain++
	return pause
}

// connect tries until there is a session; nil when ctx is done before.
func (k *Keeper) connect(ctx, finish context.Context, pause time.Duration) *session {
	for sleep(ctx, pause) {
		c, err := k.cfg.Dial(ctx)
		if err == nil {
			return k.begin(ctx, finish, c)
		}
		if ctx.Err() != nil {
			return nil
		}
		outcome, after := Failed, time.Duration(0)
		if refused, ok := errors.AsType[*tunnel.RefusedError](err); ok {
			outcome, after = Refused, refused.RetryAfter
		}
		pause = k.pause(after)
		k.cfg.Logger.WarnContext(ctx, "cannot connect to the relay", slog.String("relay_url", k.cfg.Relay), slog.String("error", err.Error()), slog.Duration("delay", pause))
		k.note(outcome, 0, err)
	}
	return nil
}

// sleep says whether the time has passed before ctx was done.
func sleep(ctx context.Context, pause time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// end is why a session is no longer the one that counts.
type end int

const (
	endLost end = iota
	endAged
	endDrained
	endLeaving
)

// hold waits until the session is to be replaced.
func (k *Keeper) hold(ctx context.Context, s *session) end {
	var aged <-chan time.Time
	if k.cfg.Age > 0 {
		timer := time.NewTimer(spread(k.cfg.Age, k.cfg.Random()))
		defer timer.Stop()
		aged = timer.C
	}
	select {
	case <-s.Done():
		return endLost
	case <-s.Drained():
		s.logger.InfoContext(ctx, "the relay leaves, another connection is made")
		s.dismiss() // what attends must not keep it open
		return endDrained
	case <-aged:
		return endAged
	case <-ctx.Done():
		return endLeaving
	}
}
