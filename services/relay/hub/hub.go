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
type Attempt struct {
	began time.Time
	tried map[int64]bool
	// rounds in which all that there was had been tried.
	rounds int
	// why the last of them was in vain, and full that it had no room.
	why  error
	full bool
}

// Failed notes why a route led nowhere; see [tunnel.ResetError.Untaken].
func (a *Attempt) Failed(r *Route, why error) { a.failed(r.Connection.ID, why) }

func (a *Attempt) failed(connection int64, why error) {
	if a.tried == nil {
		a.tried = map[int64]bool{}
	}
	var reset *tunnel.ResetError
	a.tried[connection], a.why = true, why
	a.full = a.full || errors.As(why, &reset) && reset.Reason == tunnel.Overloaded
}

// again forgets what was tried: what could not be reached may be reachable now.
func (a *Attempt) again() {
	clear(a.tried)
	a.rounds++
	a.full = false
}

const (
	// firstRound is how long it takes until what was tried in vain is tried once more, and lastRound the longest; it doubles from one to the other.
	firstRound = 200 * time.Millisecond
	lastRound  = 5 * time.Second
)

// round is when the next one begins; never where there was nothing to try.
func (a *Attempt) round() (next <-chan time.Time, stop func() bool) {
	if len(a.tried) == 0 {
		return nil, func() bool { return false }
	}
	timer := time.NewTimer(min(firstRound<<min(a.rounds, 10), lastRound))
	return timer.C, timer.Stop
}

// Open opens a stream to a target at an agent, or at one replica of it: connection is 0 for any. It waits for one that is connected and can be reached. Faults: unavailable where none came
// in time, counted from the first time that it was called for the attempt; resource_exhausted where none has room.
func (h *Hub) Open(ctx context.Context, attempt *Attempt, i route.Instruction) (*Route, error) {
	if attempt.began.IsZero() {
		attempt.began = time.Now()
	}
	ctx, cancel := context.WithDeadline(ctx, attempt.began.Add(h.cfg.Patience))
	defer cancel()
	arrived, stop := h.cfg.Registry.Arrivals(i.AgentID)
	defer stop()
	for {
		if r := h.open(ctx, attempt, i); r != nil {
			return r, nil
		}
		if attempt.full {
			return nil, fault.Wrap(attempt.why, errcode.ResourceExhausted, "%s has as many streams open as it may: try again", whom(i))
		}
		if err := h.wait(ctx, attempt, arrived); err != nil {
			return nil, attempt.fault(err, i)
		}
	}
}

// wait until something may have changed.
func (h *Hub) wait(ctx context.Context, attempt *Attempt, arrived <-chan struct{}) error {
	next, stop := attempt.round()
	defer stop()
	select {
	case <-arrived:
	case <-next:
		attempt.again()
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // it becomes a fault
	}
	return nil
}

// fault of an attempt whose time is over.
func (a *Attempt) fault(err error, i route.Instruction) error {
	waited := time.Since(a.began).Round(time.Millisecond)
	if a.why != nil {
		return fault.Wrap(err, errcode.Unavailable, "%s could not be reached; the request waited for %s, and was tried in vain: %v", whom(i), waited, a.why)
	}
	return fault.Wrap(err, errcode.Unavailable, "%s is not connected; the request waited for %s: does the agent run, and can it reach a relay?", whom(i), waited)
}

func whom(i route.Instruction) string {
	if i.ConnectionID != 0 {
		return fmt.Sprintf("connection %d of agent %d", i.ConnectionID, i.AgentID)
	}
	return fmt.Sprintf("agent %d", i.AgentID)
}

// open tries what there is, and was not tried; nil is that nothing is left.
func (h *Hub) open(ctx context.Context, attempt *Attempt, i route.Instruction) *Route {
	for {
		d := route.Decide(h.connections(i.AgentID), h.cfg.Self, i.ConnectionID, attempt.tried, rand.IntN)
		if d.Connection == nil {
			return nil
		}
		i := i
		i.ConnectionID = d.Connection.ID
		s, err := h.session(ctx, d)
		if err == nil {
			var st *tunnel.Stream
			if st, err = s.Open(i.Encode()); err == nil {
				return &Route{st, *d.Connection}
			}
		}
		if ctx.Err() != nil {
			return nil // as if there was none: time is over
		}
		attempt.failed(d.Connection.ID, err)
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
	_, _, _ = tunnel.Join(from, to) //nolint:dogsled // both ends know why
}
