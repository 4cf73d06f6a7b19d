package intake

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

// Headers of an agent's request for a tunnel, and of the answer.
const (
	HeaderAgent      = "Lockstep-Agent"
	HeaderPod        = "Lockstep-Pod"
	HeaderVersion    = "Lockstep-Version"
	HeaderCommit     = "Lockstep-Commit"
	HeaderRelay      = "Lockstep-Relay"
	HeaderConnection = "Lockstep-Connection"
)

const (
	// maxText of what an agent says of itself, in bytes.
	maxText = 253
	// DefaultHelloTimeout is how soon an agent has to ask for its configuration.
	DefaultHelloTimeout = 15 * time.Second
	// maxStreams that an agent may have open: it needs one, and each may cost a window of memory.
	maxStreams = 4
	// retryAfter is what agents are told that come when there is no room, in seconds; they add to it by chance.
	retryAfter = "2"
)

// Credential is what is known of an agent.
type Credential struct {
	ProjectID int64
	// TokenHash is zero where it is not known.
	TokenHash natsauth.TokenHash
	Revoked   bool
}

// Agents is who may connect.
type Agents interface {
	// Ready says whether anything is known.
	Ready() bool
	Agent(id int64) (Credential, bool)
	// Changed is closed with the next change.
	Changed() <-chan struct{}
}

// Holder has streams opened through the sessions that it holds; see [hub.Hub].
type Holder interface {
	Hold(c registry.Connection, s *tunnel.Session) (leave func())
}

// Teller is told who comes and goes.
type Teller interface {
	Connected(c registry.Connection)
	Disconnected(c registry.Connection, at time.Time, why events.DisconnectReason)
}

// Configurations are what agents are configured with.
type Configurations interface {
	// Configuration of an agent as a line of JSON, and a channel that is closed when there is another.
	Configuration(agent int64) (line []byte, changed <-chan struct{})
}

// Config of a [Handler]. All is required but Tunnel and HelloTimeout.
type Config struct {
	// RelayID of this relay.
	RelayID        string
	Agents         Agents
	Holder         Holder
	Tellers        []Teller
	Configurations Configurations
	Sessions       *tunnel.Sessions
	Tunnel         tunnel.Config
	// MaxConnections that are held at a time, and MaxConnectionsPerAgent those of one agent.
	MaxConnections, MaxConnectionsPerAgent int
	// HelloTimeout is how soon an agent has to ask for its configuration; else its connection, which nobody can use, is closed. Defaults to [DefaultHelloTimeout].
	HelloTimeout time.Duration
	Logger       *slog.Logger
	Now          func() time.Time
}

// Handler is made by [New].
type Handler struct {
	cfg Config

	mu sync.Mutex
	// connected are the connections of each agent, by their ids.
	connected map[int64]map[int64]*connection
	// count of all that are held, and held those of each agent: also those that are not connected yet, or are being drained.
	count int
	held  map[int64]int
	// idle is closed when none is held any more; nil while nobody waits for that.
	idle chan struct{}
}

// New makes a handler.
func New(cfg Config) *Handler {
	cfg.Tunnel.MaxStreams = maxStreams
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = DefaultHelloTimeout
	}
	return &Handler{cfg: cfg, connected: map[int64]map[int64]*connection{}, held: map[int64]int{}}
}

// connection of one replica.
type connection struct {
	registry.Connection

	hash    natsauth.TokenHash
	session *tunnel.Session
	// hello is closed when the agent asks for its configuration.
	hello chan struct{}
	once  sync.Once
	// told is that it hears its configuration.
	told atomic.Bool
	// cut is why this side ended it; set before the session is closed.
	cut error
}

// ServeHTTP answers as soon as the tunnel is there.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := h.admit(r)
	if err != nil {
		if fault.Is(err, errcode.Unavailable) {
			w.Header().Set("Retry-After", retryAfter)
		}
		fault.WriteHTTP(w, r, h.cfg.Logger, err)
		return
	}
	conn, secret, err := tunnel.Upgrade(w, r, http.Header{HeaderRelay: {h.cfg.RelayID}, HeaderConnection: {strconv.FormatInt(c.ID, 10)}})
	if err != nil {
		h.release(c.AgentID)
		h.cfg.Logger.WarnContext(r.Context(), "an agent's tunnel was not opened", slog.Int64("agent_id", c.AgentID), slog.String("from", r.RemoteAddr), slog.Any("error", err))
		return
	}
	go h.hold(context.WithoutCancel(r.Context()), c, conn, secret)
}

// admit lets an agent in, and counts its connection.
func (h *Handler) admit(r *http.Request) (*connection, error) {
	switch {
	case h.cfg.Sessions.Draining():
		return nil, fault.New(errcode.Unavailable, "this relay is being drained: connect to another one")
	case !h.cfg.Agents.Ready():
		return nil, fault.New(errcode.Unavailable, "this relay has not read the directory of agents yet: try again")
	}
	id, err := strconv.ParseInt(r.Header.Get(HeaderAgent), 10, 64)
	if err != nil || id <= 0 {
		return nil, fault.New(errcode.Unauthenticated, "this address is for agents: the header %s names none", HeaderAgent)
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	if err != nil {
		return nil, fault.New(errcode.Unauthenticated, "the agent's token is malformed")
	}
	known, found := h.cfg.Agents.Agent(id)
	if err := accept(id, known, found, hash); err != nil {
		return nil, err
	}
	namespace, name, _ := strings.Cut(text(r, HeaderPod), "/")
	c := &connection{hash: hash, hello: make(chan struct{}), Connection: registry.Connection{
		AgentID: id, ID: newID(), RelayID: h.cfg.RelayID, ProjectID: known.ProjectID, Version: text(r, HeaderVersion), Commit: text(r, HeaderCommit),
		PodNamespace: namespace, PodName: name, ConnectedAt: h.cfg.Now().UTC().Truncate(time.Millisecond),
	}}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.count >= h.cfg.MaxConnections:
		return nil, fault.New(errcode.Unavailable, "this relay holds %d connections of agents, as many as it may: connect to another one", h.count)
	case h.held[id] >= h.cfg.MaxConnectionsPerAgent:
		return nil, fault.New(errcode.Unavailable, "this relay holds %d connections of agent %d, as many as one may have: connect to another one", h.held[id], id)
	}
	h.count++
	h.held[id]++
	return c, nil
}

// accept says whether an agent with a token of this hash may be connected.
func accept(id int64, known Credential, found bool, hash natsauth.TokenHash) error {
	unknown := known.TokenHash == natsauth.TokenHash{}
	switch {
	case !found || subtle.ConstantTimeCompare(known.TokenHash[:], hash[:]) != 1 || unknown:
		return fault.New(errcode.Unauthenticated, "the token is not that of agent %d", id)
	case known.Revoked:
		return fault.New(errcode.PermissionDenied, "agent %d is revoked: register another one", id)
	}
	return nil
}

// text that an agent says of itself, as far as it can be believed to be one.
func text(r *http.Request, header string) string {
	value := r.Header.Get(header)
	return strings.ToValidUTF8(value[:min(len(value), maxText)], "?")
}

func newID() int64 {
	var raw [8]byte
	for {
		rand.Read(raw[:]) // never fails
		if id := int64(binary.BigEndian.Uint64(raw[:]) >> 1); id > 0 {
			return id
		}
	}
}

// Connections that are held.
func (h *Handler) Connections() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

func (h *Handler) release(agent int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count--
	if h.held[agent]--; h.held[agent] == 0 {
		delete(h.held, agent)
	}
	if h.count == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// Drain waits until no connection is held any more and all have been told so, which is after the end of its session; at the latest until finish is done. The sessions are drained before.
func (h *Handler) Drain(finish context.Context) {
	h.mu.Lock()
	if h.count == 0 {
		h.mu.Unlock()
		return
	}
	if h.idle == nil {
		h.idle = make(chan struct{})
	}
	idle := h.idle
	h.mu.Unlock()
	select {
	case <-idle:
	case <-finish.Done():
	}
}

// hold serves a connection until it ends.
func (h *Handler) hold(ctx context.Context, c *connection, conn net.Conn, secret bool) {
	defer h.release(c.AgentID)
	c.session = tunnel.NewSession(conn, false, secret, h.cfg.Tunnel, func(s *tunnel.Stream) { h.take(c, s) })
	why := make(chan error, 1)
	go func() { why <- h.cfg.Sessions.Serve(c.session) }()
	hello := time.NewTimer(h.cfg.HelloTimeout)
	defer hello.Stop()
	select {
	case <-c.hello:
		h.connect(ctx, c)
	case <-c.session.Done():
	case <-hello.C:
		_ = c.session.Close() // it has no outcome
	}
	err := <-why
	h.cfg.Logger.DebugContext(ctx, "a tunnel of an agent has ended", slog.Int64("agent_id", c.AgentID), slog.Int64("connection_id", c.ID), slog.Any("error", err))
}

// connect has the connection used until it ends, or the agent drains it.
func (h *Handler) connect(ctx context.Context, c *connection) {
	log := h.cfg.Logger.With(slog.Int64("agent_id", c.AgentID), slog.Int64("connection_id", c.ID), slog.String("pod", c.PodNamespace+"/"+c.PodName))
	if !h.enter(c) { // it was revoked meanwhile
		_ = c.session.Close() // it has no outcome
		return
	}
	leave := h.cfg.Holder.Hold(c.Connection, c.session)
	for _, t := range h.cfg.Tellers {
		t.Connected(c.Connection)
	}
	log.InfoContext(ctx, "an agent is connected", slog.String("version", c.Version))
	select {
	case <-c.session.Drained():
	case <-c.session.Leaving():
	case <-c.session.Done():
	}
	why := reason(c.session)
	leave()
	if h.cutOff(c) {
		why = events.DisconnectReasonRevoked
	}
	for _, t := range h.cfg.Tellers {
		t.Disconnected(c.Connection, h.cfg.Now(), why)
	}
	log.InfoContext(ctx, "an agent is disconnected", slog.String("reason", string(why)))
	<-c.session.Done() // until then it can be cut: what is open may go on for long
	h.leave(c)
}

// reason why a session is used no more. Much may have happened by the time that it is asked: one that is drained ends soon, and who is told that the relay leaves, leaves.
func reason(s *tunnel.Session) events.DisconnectReason {
	select {
	case <-s.Leaving():
		return events.DisconnectReasonRelayLeft
	default:
	}
	select {
	case <-s.Drained():
		return events.DisconnectReasonAgentLeft
	default:
	}
	return events.DisconnectReasonLost
}

func (h *Handler) enter(c *connection) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, found := h.cfg.Agents.Agent(c.AgentID)
	if c.cut = accept(c.AgentID, known, found, c.hash); c.cut != nil {
		return false
	}
	if h.connected[c.AgentID] == nil {
		h.connected[c.AgentID] = map[int64]*connection{}
	}
	h.connected[c.AgentID][c.ID] = c
	return true
}

// cutOff says whether this side ended it.
func (h *Handler) cutOff(c *connection) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return c.cut != nil
}

func (h *Handler) leave(c *connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.connected[c.AgentID], c.ID)
	if len(h.connected[c.AgentID]) == 0 {
		delete(h.connected, c.AgentID)
	}
}

var errAsked = errors.New("an agent opens one stream, for its configuration")

// take a stream that the agent has opened.
func (h *Handler) take(c *connection, s *tunnel.Stream) {
	if string(s.Head()) != ConfigurationHead || !c.told.CompareAndSwap(false, true) {
		s.Reset(tunnel.Refused, errAsked.Error())
		return
	}
	defer c.told.Store(false)
	defer s.Reset(tunnel.Cancelled, "the configuration is told no more")
	for {
		line, changed := h.cfg.Configurations.Configuration(c.AgentID)
		if len(line) == 0 {
			line = noConfiguration
		}
		if _, err := s.Write(append(slices.Clip(line), '\n')); err != nil {
			return
		}
		c.once.Do(func() { close(c.hello) })
		select {
		case <-changed:
		case <-c.session.Leaving():
			return
		case <-c.session.Drained():
			return
		case <-c.session.Done():
			return
		}
	}
}

// noConfiguration is what an agent hears that has none yet.
var noConfiguration = []byte("{}")

// ConfigurationHead is what the stream is opened with on which an agent hears its configuration.
const ConfigurationHead = `{"stream":"configuration"}`

// Run cuts connections of agents that may not have them any more, until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	for {
		changed := h.cfg.Agents.Changed()
		h.check(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (h *Handler) check(ctx context.Context) {
	h.mu.Lock()
	var cut []*connection
	for id, connections := range h.connected {
		known, found := h.cfg.Agents.Agent(id)
		for _, c := range connections {
			if err := accept(id, known, found, c.hash); err != nil {
				c.cut = fmt.Errorf("cut: %w", err)
				cut = append(cut, c)
			}
		}
	}
	h.mu.Unlock()
	for _, c := range cut {
		h.cfg.Logger.WarnContext(ctx, "an agent is cut off", slog.Int64("agent_id", c.AgentID), slog.Int64("connection_id", c.ID), slog.Any("error", c.cut))
		_ = c.session.Close() // it has no outcome
	}
}
