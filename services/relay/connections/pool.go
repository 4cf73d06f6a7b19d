// Package connections opens streams to agents: through a connection that this relay holds, through another relay
// that holds one, or, while none is connected, as soon as one is.
//
// It promises: a stream goes to a connected replica. If its connection is lost before anything was accepted, the
// next one is tried. A waiting request is woken by the registry and polls nothing; connections that could not be
// reached are retried after 200 ms, then less often, up to every 5 s. A stream that another relay opened here is
// served or refused, and never forwarded again.
package connections

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// DefaultAgentTimeout is how long a request waits for an agent by default.
const DefaultAgentTimeout = time.Minute

// Config of a [Pool]. All fields are required, unless they have a default.
type Config struct {
	// Self is the id of this relay.
	Self     string
	Registry *registry.Registry
	// Peer returns a session with another relay.
	Peer func(ctx context.Context, relay registry.Relay) (*tunnel.Session, error)
	// AgentTimeout defaults to [DefaultAgentTimeout].
	AgentTimeout time.Duration
}

// Pool has the agents' sessions that this relay holds. It may be used by many goroutines.
type Pool struct {
	cfg Config

	mu sync.Mutex
	// sessions by agent and connection id.
	sessions map[int64]map[int64]held
}

type held struct {
	registry.Connection

	session *tunnel.Session
}

// NewPool makes an empty pool.
func NewPool(cfg Config) *Pool {
	if cfg.AgentTimeout == 0 {
		cfg.AgentTimeout = DefaultAgentTimeout
	}
	return &Pool{cfg: cfg, sessions: map[int64]map[int64]held{}}
}

// Add adds the session of a replica, until remove is called.
func (p *Pool) Add(c registry.Connection, s *tunnel.Session) (remove func()) {
	c.RelayID = p.cfg.Self
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[c.AgentID] == nil {
		p.sessions[c.AgentID] = map[int64]held{}
	}
	p.sessions[c.AgentID][c.ID] = held{c, s}
	p.cfg.Registry.Notify(c.AgentID)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.sessions[c.AgentID], c.ID)
		if len(p.sessions[c.AgentID]) == 0 {
			delete(p.sessions, c.AgentID)
		}
	}
}

func (p *Pool) get(agent, connection int64) (held, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, found := p.sessions[agent][connection]
	return c, found
}

// Stream is a stream and the connection it goes through.
type Stream struct {
	*tunnel.Stream

	Connection registry.Connection
}

// Attempt records where one request was tried. The zero value is a new request.
type Attempt struct {
	began time.Time
	tried map[int64]bool // connections
	// rounds in which every connection was tried.
	rounds int
	// err of the last try. full is that an agent had no room.
	err  error
	full bool
}

// Failed records that nothing of a request was accepted; see [tunnel.ResetError.Retryable].
func (a *Attempt) Failed(s *Stream, err error) { a.failed(s.Connection.ID, err) }

func (a *Attempt) failed(connection int64, err error) {
	if a.tried == nil {
		a.tried = map[int64]bool{}
	}
	var reset *tunnel.ResetError
	a.tried[connection], a.err = true, err
	a.full = a.full || errors.As(err, &reset) && reset.Reason == tunnel.Overloaded
}

// nextRound allows every connection again.
func (a *Attempt) nextRound() {
	clear(a.tried)
	a.rounds++
	a.full = false
}

const (
	// minRoundDelay before connections are tried again. It doubles up to maxRoundDelay.
	minRoundDelay = 200 * time.Millisecond
	maxRoundDelay = 5 * time.Second
)

// roundTimer fires when the next round begins; never if no connection was tried.
func (a *Attempt) roundTimer() (fired <-chan time.Time, stop func() bool) {
	if len(a.tried) == 0 {
		return nil, func() bool { return false }
	}
	timer := time.NewTimer(min(minRoundDelay<<min(a.rounds, 10), maxRoundDelay))
	return timer.C, timer.Stop
}

// Open opens a stream to a target of an agent, or of one replica of it. It waits until one is connected and can be
// reached. Faults: unavailable if none was in time, counted from the first call for the attempt;
// resource_exhausted if none has room.
func (p *Pool) Open(ctx context.Context, attempt *Attempt, to route.Destination) (*Stream, error) {
	if attempt.began.IsZero() {
		attempt.began = time.Now()
	}
	if s := p.tryAll(ctx, attempt, to); s != nil { // as a rule one is connected, and nothing has to be set up
		return s, nil
	}
	ctx, cancel := context.WithDeadline(ctx, attempt.began.Add(p.cfg.AgentTimeout))
	defer cancel()
	connected, unsubscribe := p.cfg.Registry.Subscribe(to.AgentID)
	defer unsubscribe()
	for {
		if s := p.tryAll(ctx, attempt, to); s != nil {
			return s, nil
		}
		if attempt.full {
			return nil, fault.Wrap(attempt.err, errcode.ResourceExhausted,
				"%s has its maximum of open streams: try again", describe(to))
		}
		if err := p.wait(ctx, attempt, connected); err != nil {
			return nil, attempt.timeout(err, to)
		}
	}
}

// wait until a connection may be usable.
func (p *Pool) wait(ctx context.Context, attempt *Attempt, connected <-chan struct{}) error {
	next, stop := attempt.roundTimer()
	defer stop()
	select {
	case <-connected:
	case <-next:
		attempt.nextRound()
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // it becomes a fault
	}
	return nil
}

func (a *Attempt) timeout(err error, to route.Destination) error {
	waited := time.Since(a.began).Round(time.Millisecond)
	if a.err != nil {
		return fault.Wrap(err, errcode.Unavailable,
			"%s could not be reached; the request waited for %s, and was tried in vain: %v", describe(to), waited, a.err)
	}
	return fault.Wrap(err, errcode.Unavailable,
		"%s is not connected; the request waited for %s: does the agent run, and can it reach a relay?", describe(to), waited)
}

func describe(to route.Destination) string {
	if to.ConnectionID != 0 {
		return fmt.Sprintf("connection %d of agent %d", to.ConnectionID, to.AgentID)
	}
	return fmt.Sprintf("agent %d", to.AgentID)
}

// tryAll tries each connection that was not tried; nil if all failed.
func (p *Pool) tryAll(ctx context.Context, attempt *Attempt, to route.Destination) *Stream {
	for {
		d := route.Decide(p.connections(to.AgentID), p.cfg.Self, to.ConnectionID, attempt.tried, rand.IntN)
		if d.Connection == nil {
			return nil
		}
		to := to
		to.ConnectionID = d.Connection.ID
		session, err := p.session(ctx, d)
		if err == nil {
			var s *tunnel.Stream
			if s, err = session.Open(to.Encode()); err == nil {
				return &Stream{s, *d.Connection}
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		attempt.failed(d.Connection.ID, err)
	}
}

// connections of an agent. The pool knows its own before the registry does.
func (p *Pool) connections(agent int64) []registry.Connection {
	known := p.cfg.Registry.Agent(agent)
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]registry.Connection, 0, len(known)+1)
	for _, c := range known {
		if c.RelayID != p.cfg.Self {
			out = append(out, c)
		}
	}
	for _, c := range p.sessions[agent] {
		out = append(out, c.Connection)
	}
	return out
}

var errGone = errors.New("the connection is gone")

func (p *Pool) session(ctx context.Context, d route.Decision) (*tunnel.Session, error) {
	if d.Local {
		if c, found := p.get(d.Connection.AgentID, d.Connection.ID); found {
			return c.session, nil
		}
		return nil, errGone
	}
	relay, known := p.cfg.Registry.Relay(d.Connection.RelayID)
	if !known {
		return nil, errGone
	}
	return p.cfg.Peer(ctx, relay)
}

// ServePeer joins a stream that another relay opened with the connection that it names, until both have ended.
func (p *Pool) ServePeer(from *tunnel.Stream) {
	to, err := route.Decode(from.Head())
	if err != nil {
		from.Reset(tunnel.Refused, err.Error())
		return
	}
	c, found := p.get(to.AgentID, to.ConnectionID)
	if !found {
		from.Reset(tunnel.NotHere, fmt.Sprintf("connection %d of agent %d is not at this relay", to.ConnectionID, to.AgentID))
		return
	}
	stream, err := c.session.Open(from.Head())
	if err != nil {
		from.Reset(tunnel.NotHere, fmt.Sprintf("connection %d of agent %d has just gone", to.ConnectionID, to.AgentID))
		return
	}
	stream.ForwardAccepted(from)
	_, _, _ = tunnel.Join(from, stream) //nolint:dogsled // both ends know why
}
