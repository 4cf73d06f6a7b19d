// Package connections opens streams to agents: through a local connection or another relay. If no replica is
// connected, it waits for one.
//
// It promises: a stream goes to a connected replica. If a stream cannot be opened through one connection, the next one
// is tried. If a stream fails later, [RetryState.RecordFailure] reports whether to open another. A request without an
// answer leaves a replica that is silent for another one ([Pool.AwaitAnswer]). The registry wakes
// waiting requests; there is no polling. Connections that could not be reached are retried after 0.1 to 0.2 s,
// then less often, at most every 5 s. A stream that another relay opened here is served or refused, and never
// forwarded again.
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

const (
	// DefaultAgentTimeout is how long a request waits for an agent by default.
	DefaultAgentTimeout = time.Minute
	// DefaultMaxWaiting is the default maximum of requests that wait for an agent.
	DefaultMaxWaiting = 2000
)

// Config of a [Pool]. All fields are required, unless they have a default.
type Config struct {
	// Self is the id of this relay.
	Self     string
	Registry *registry.Registry
	// Peer returns a session with another relay.
	Peer func(ctx context.Context, relay registry.Relay) (*tunnel.Session, error)
	// AgentTimeout is how long a request without a deadline of its caller waits. Defaults to [DefaultAgentTimeout].
	AgentTimeout time.Duration
	// MaxWaiting requests for agents. Defaults to [DefaultMaxWaiting].
	MaxWaiting int
	// Refused counts a request that may not wait. Optional.
	Refused func()
}

// Pool holds the sessions of agents that are connected to this relay, and opens streams. It may be used by many
// goroutines.
type Pool struct {
	cfg Config

	mu sync.Mutex
	// sessions by agent and connection id.
	sessions map[int64]map[int64]localSession
	// waiting counts requests that wait for an agent.
	waiting int
}

type localSession struct {
	registry.Connection

	session *tunnel.Session
}

// NewPool makes an empty pool.
func NewPool(cfg Config) *Pool {
	if cfg.AgentTimeout == 0 {
		cfg.AgentTimeout = DefaultAgentTimeout
	}
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = DefaultMaxWaiting
	}
	return &Pool{cfg: cfg, sessions: map[int64]map[int64]localSession{}}
}

// Add adds a session of an agent. Call remove when it drains or ends.
func (p *Pool) Add(c registry.Connection, s *tunnel.Session) (remove func()) {
	c.RelayID = p.cfg.Self
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[c.AgentID] == nil {
		p.sessions[c.AgentID] = map[int64]localSession{}
	}
	p.sessions[c.AgentID][c.ID] = localSession{c, s}
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

func (p *Pool) get(agent, connection int64) (localSession, bool) {
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

// Open opens a stream to a target of an agent, or of one replica of it. It waits until one is connected and can
// be reached. Faults: unavailable after [RetryState.Deadline]; resource_exhausted if an agent is overloaded, or too
// many requests wait.
func (p *Pool) Open(ctx context.Context, state *RetryState, to route.Destination) (*Stream, error) {
	if state.startedAt.IsZero() {
		state.startedAt = time.Now()
		if state.Deadline.IsZero() {
			state.Deadline = state.startedAt.Add(p.cfg.AgentTimeout)
		}
	}
	ctx, cancel := context.WithDeadline(ctx, state.Deadline)
	defer cancel()
	if s := p.tryAll(ctx, state, to); s != nil { // fast path: usually one is connected
		return s, nil
	}
	if err := p.beginWait(state.describe(to) + " is not connected"); err != nil {
		return nil, err
	}
	defer p.endWait()
	connected, unsubscribe := p.cfg.Registry.Subscribe(to.AgentID)
	defer unsubscribe()
	for {
		if s := p.tryAll(ctx, state, to); s != nil {
			return s, nil
		}
		if state.overloaded {
			return nil, fault.Wrap(state.err, errcode.ResourceExhausted,
				"%s reached its maximum number of open streams: try again", state.describe(to))
		}
		if err := p.wait(ctx, state, connected); err != nil {
			return nil, state.timeout(err, to)
		}
	}
}

// AwaitStart waits until ready is closed, because the relay cannot authenticate callers before. Faults: unavailable at
// the deadline, which defaults to AgentTimeout from now; resource_exhausted if too many requests wait.
func (p *Pool) AwaitStart(ctx context.Context, ready <-chan struct{}, deadline time.Time) error {
	const reason = "this relay has just started and has not read the directory of users and agents from NATS"
	if deadline.IsZero() {
		deadline = time.Now().Add(p.cfg.AgentTimeout)
	}
	if err := p.beginWait(reason); err != nil {
		return err
	}
	defer p.endWait()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), errcode.Unavailable, "%s: try again", reason)
	}
}

// beginWait counts a request that waits for a reason. Fault resource_exhausted.
func (p *Pool) beginWait(reason string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting >= p.cfg.MaxWaiting {
		if p.cfg.Refused != nil {
			p.cfg.Refused()
		}
		return fault.New(errcode.ResourceExhausted,
			"%s, and %d requests wait for agents at this relay, its maximum: try again", reason, p.waiting)
	}
	p.waiting++
	return nil
}

func (p *Pool) endWait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
}

// Waiting returns the number of requests that wait for an agent.
func (p *Pool) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// wait until a connection may be usable.
func (p *Pool) wait(ctx context.Context, state *RetryState, connected <-chan struct{}) error {
	next, stop := state.roundTimer()
	defer stop()
	select {
	case <-connected:
	case <-next:
		state.nextRound()
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // it becomes a fault
	}
	return nil
}

// tryAll tries each connection that was not tried; nil if all failed.
func (p *Pool) tryAll(ctx context.Context, state *RetryState, to route.Destination) *Stream {
	for {
		d := route.Decide(p.connections(to.AgentID), p.cfg.Self, to.ConnectionID, state.tried, rand.IntN)
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
		state.markTried(d.Connection.ID, err) // nothing was sent
	}
}

// connections of an agent. Local connections come from the pool, because the registry learns of them later.
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

var errGone = errors.New("the connection is closed")

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

// ServePeer serves a stream from another relay: it opens a stream on the named connection and joins the two.
func (p *Pool) ServePeer(from *tunnel.Stream) {
	to, err := route.Decode(from.Metadata())
	if err != nil {
		from.Reset(tunnel.Refused, err.Error())
		return
	}
	c, found := p.get(to.AgentID, to.ConnectionID)
	if !found {
		from.Reset(tunnel.NotAccepted,
			fmt.Sprintf("this relay has no connection %d of agent %d", to.ConnectionID, to.AgentID))
		return
	}
	if to.Probe {
		serveProbe(from, c.session)
		return
	}
	stream, err := c.session.Open(from.Metadata())
	if err != nil {
		from.Reset(tunnel.NotAccepted, fmt.Sprintf("connection %d of agent %d was closed", to.ConnectionID, to.AgentID))
		return
	}
	stream.ForwardAccepted(from)
	_, _, _ = tunnel.Join(from, stream) //nolint:dogsled // both sides have the error
}
