package hub

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

// DefaultPatience is how long a request waits for an agent, unless its caller says so.
const DefaultPatience = time.Minute

// Config of a [Hub]. All but Patience is required.
type Config struct {
	// Self is the id of this relay.
	Self     string
	Registry *registry.Registry
	// Peer is a session with another relay.
	Peer func(ctx context.Context, relay registry.Relay) (*tunnel.Session, error)
	// Patience defaults to [DefaultPatience].
	Patience time.Duration
}

// Hub may be used by many goroutines.
type Hub struct {
	cfg Config

	mu sync.Mutex
	// sessions of the agents' replicas that this relay holds, by agent and connection.
	sessions map[int64]map[int64]held
}

type held struct {
	registry.Connection

	session *tunnel.Session
}

// New makes a hub.
func New(cfg Config) *Hub {
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	return &Hub{cfg: cfg, sessions: map[int64]map[int64]held{}}
}

// Hold takes the session of a replica, until leave is called.
func (h *Hub) Hold(c registry.Connection, s *tunnel.Session) (leave func()) {
	c.RelayID = h.cfg.Self
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[c.AgentID] == nil {
		h.sessions[c.AgentID] = map[int64]held{}
	}
	h.sessions[c.AgentID][c.ID] = held{c, s}
	h.cfg.Registry.Arrived(c.AgentID)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.sessions[c.AgentID], c.ID)
		if len(h.sessions[c.AgentID]) == 0 {
			delete(h.sessions, c.AgentID)
		}
	}
}

func (h *Hub) held(agent, connection int64) (held, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, here := h.sessions[agent][connection]
	return c, here
}

// Route is a stream and what it goes through.
type Route struct {
	*tunnel.Stream

	Connection registry.Connection
}

// Attempt says of one request where it was tried in vain. The zero value is one that begins.
type Attempt struct{ tried map[int64]bool }

// Failed notes that a route led nowhere; see [tunnel.ResetError.Untaken].
func (a *Attempt) Failed(r *Route) { a.failed(r.Connection.ID) }

func (a *Attempt) failed(connection int64) {
	if a.tried == nil {
		a.tried = map[int64]bool{}
	}
	a.tried[connection] = true
}

// Open opens a stream to a target at an agent, or at one replica of it: connection is 0 for any. Fault unavailable: none came in time.
func (h *Hub) Open(ctx context.Context, attempt *Attempt, i route.Instruction) (*Route, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Patience)
	defer cancel()
	arrived, stop := h.cfg.Registry.Arrivals(i.AgentID)
	defer stop()
	began := time.Now()
	for {
		r, err := h.open(ctx, attempt, i)
		if r != nil || err != nil {
			return r, err
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			what := fmt.Sprintf("agent %d", i.AgentID)
			if i.ConnectionID != 0 {
				what = fmt.Sprintf("connection %d of agent %d", i.ConnectionID, i.AgentID)
			}
			return nil, fault.Wrap(context.Cause(ctx), errcode.Unavailable, "%s is not connected; the request waited for %s: does the agent run, and can it reach a relay?",
				what, time.Since(began).Round(time.Millisecond))
		}
	}
}

// open tries what there is; nothing is none.
func (h *Hub) open(ctx context.Context, attempt *Attempt, i route.Instruction) (*Route, error) {
	for {
		d := route.Decide(h.connections(i.AgentID), h.cfg.Self, i.ConnectionID, attempt.tried, rand.IntN)
		if d.Connection == nil {
			return nil, nil //nolint:nilnil // says that there is none
		}
		i := i
		i.ConnectionID = d.Connection.ID
		s, err := h.session(ctx, d)
		if err == nil {
			var st *tunnel.Stream
			if st, err = s.Open(i.Encode()); err == nil {
				return &Route{st, *d.Connection}, nil
			}
		}
		if ctx.Err() != nil {
			return nil, nil //nolint:nilnil // as if there was none: time is over
		}
		attempt.failed(d.Connection.ID)
	}
}

// connections of an agent: those that are held here are known first here.
func (h *Hub) connections(agent int64) []registry.Connection {
	known := h.cfg.Registry.Agent(agent)
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]registry.Connection, 0, len(known))
	for _, c := range known {
		if c.RelayID != h.cfg.Self {
			out = append(out, c)
		}
	}
	for _, c := range h.sessions[agent] {
		out = append(out, c.Connection)
	}
	return out
}

var errGone = errors.New("the connection is gone")

func (h *Hub) session(ctx context.Context, d route.Decision) (*tunnel.Session, error) {
	if d.Local {
		if c, here := h.held(d.Connection.AgentID, d.Connection.ID); here {
			return c.session, nil
		}
		return nil, errGone
	}
	relay, known := h.cfg.Registry.Relay(d.Connection.RelayID)
	if !known {
		return nil, errGone
	}
	return h.cfg.Peer(ctx, relay)
}

// Follow joins a stream that another relay opened with the connection that it names, until both are over.
func (h *Hub) Follow(from *tunnel.Stream) {
	i, err := route.Decode(from.Head())
	if err != nil {
		from.Reset(tunnel.Refused, err.Error())
		return
	}
	c, here := h.held(i.AgentID, i.ConnectionID)
	if !here {
		from.Reset(tunnel.Elsewhere, fmt.Sprintf("connection %d of agent %d is not at this relay", i.ConnectionID, i.AgentID))
		return
	}
	to, err := c.session.Open(from.Head())
	if err != nil {
		from.Reset(tunnel.Elsewhere, fmt.Sprintf("connection %d of agent %d has just gone", i.ConnectionID, i.AgentID))
		return
	}
	to.PassTaken(from)
	_, _, _ = tunnel.Join(from, to) // both ends know why
}
