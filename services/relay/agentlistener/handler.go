// Package agentlistener accepts the tunnels that agents dial.
//
// It authenticates an agent by its token. A replica is connected once it has opened its configuration stream. After a
// change, the stream receives the newest configuration. A connection ends with its tunnel, when the agent or this relay
// drains it, and at once when the agent is revoked or its token has ended. The observer sees every connection and
// disconnection.
package agentlistener

import (
	"context"
	"crypto/rand"
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

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

// Headers of an agent's request for a tunnel, and of the response. Callers send HeaderConnection to choose one
// connection of an agent.
const (
	HeaderAgent      = "Lockstep-Agent"
	HeaderPod        = "Lockstep-Pod"
	HeaderVersion    = "Lockstep-Version"
	HeaderCommit     = "Lockstep-Commit"
	HeaderRelay      = "Lockstep-Relay"
	HeaderConnection = "Lockstep-Connection"
)

// ConfigStreamMetadata is the metadata of the stream that an agent receives its configuration on.
const ConfigStreamMetadata = `{"stream":"configuration"}`

const (
	// maxHeaderValue is the maximum size of an agent header, in bytes.
	maxHeaderValue = 253
	// DefaultConfigStreamTimeout for an agent to open its configuration stream.
	DefaultConfigStreamTimeout = 15 * time.Second
	// maxAgentStreams that an agent may have open: an agent needs one; each stream may use one window of memory.
	maxAgentStreams = 4
	// Limits of connections, in metrics.
	limitConnections      = "connections"
	limitAgentConnections = "agent_connections"
	// retryAfter is sent while the relay is full, drains or has not read the directory, in seconds. Agents add a random
	// delay.
	retryAfter = "2"
)

// Agents has the token hashes of agents; a [directory.Directory].
type Agents interface {
	// Ready reports whether the directory has been read.
	Ready() bool
	Agent(id int64) (directory.Agent, bool)
	// Changed is closed at the next change.
	Changed() <-chan struct{}
}

// Pool opens streams in the sessions that are added to it; a [connections.Pool].
type Pool interface {
	Add(c registry.Connection, s *tunnel.Session) (remove func())
}

// Observer of connections. Its methods may block.
type Observer interface {
	Connected(c registry.Connection)
	Disconnected(c registry.Connection, at time.Time, reason events.DisconnectReason)
}

// AgentConfigs are the configurations of agents.
type AgentConfigs interface {
	// AgentConfig returns a configuration as a line of JSON, and a channel that is closed when it changes.
	AgentConfig(agent int64) (line []byte, changed <-chan struct{})
}

// Config of a [Handler]. All fields are required, unless they have a default.
type Config struct {
	// RelayID of this relay.
	RelayID      string
	Agents       Agents
	Pool         Pool
	Observer     Observer
	AgentConfigs AgentConfigs
	Sessions     *tunnel.SessionGroup
	// Tunnel has defaults.
	Tunnel tunnel.Config
	// MaxConnections of all agents, and MaxConnectionsPerAgent of one.
	MaxConnections, MaxConnectionsPerAgent int
	// ConfigStreamTimeout for an agent to open its configuration stream. Defaults to [DefaultConfigStreamTimeout].
	ConfigStreamTimeout time.Duration
	// Refused counts a connection above a limit. Optional.
	Refused func(limit string)
	Logger  *slog.Logger
	Now     func() time.Time
}

// Handler accepts tunnels of agents. It may be used by many goroutines.
type Handler struct {
	cfg Config

	mu sync.Mutex
	// connected are the connections in use, by agent and connection id.
	connected map[int64]map[int64]*connection
	// open counts all connections, and openPerAgent those of each agent, also unused and draining ones.
	open         int
	openPerAgent map[int64]int
	// allClosed is closed when no connection is open; nil unless Drain waits for it.
	allClosed chan struct{}
}

// connection of one replica.
type connection struct {
	// Set before the first use, then read only.
	registry.Connection

	hash    natsauth.TokenHash
	session *tunnel.Session

	// configStreamOpened is closed when the agent opens its configuration stream.
	configStreamOpened chan struct{}
	configStreamOnce   sync.Once
	// configStream reports whether the configuration stream is open.
	configStream atomic.Bool

	// revoked is why this relay closed the session; guarded by Handler.mu.
	revoked error
}

// NewHandler makes a handler.
func NewHandler(cfg Config) *Handler {
	cfg.Tunnel.MaxStreams = maxAgentStreams
	if cfg.ConfigStreamTimeout == 0 {
		cfg.ConfigStreamTimeout = DefaultConfigStreamTimeout
	}
	if cfg.Refused == nil {
		cfg.Refused = func(string) {}
	}
	return &Handler{cfg: cfg, connected: map[int64]map[int64]*connection{}, openPerAgent: map[int64]int{}}
}

// ServeHTTP upgrades a request to a tunnel, and returns.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := h.authenticateAndReserve(r)
	if err != nil {
		if fault.Is(err, errcode.Unavailable) {
			w.Header().Set("Retry-After", retryAfter)
		}
		fault.WriteHTTP(w, r, h.cfg.Logger, err)
		return
	}
	header := http.Header{HeaderRelay: {h.cfg.RelayID}, HeaderConnection: {strconv.FormatInt(c.ID, 10)}}
	conn, encrypted, err := tunnel.Upgrade(w, r, header)
	if err != nil {
		h.release(c.AgentID)
		h.cfg.Logger.WarnContext(r.Context(), "upgrading an agent's request failed", slog.Int64(logkey.AgentID, c.AgentID),
			slog.String(logkey.RemoteAddress, r.RemoteAddr), logkey.Error(err))
		return
	}
	go h.serve(context.WithoutCancel(r.Context()), c, conn, encrypted)
}

// authenticateAndReserve authenticates an agent and reserves a connection.
func (h *Handler) authenticateAndReserve(r *http.Request) (*connection, error) {
	switch {
	case h.cfg.Sessions.Draining():
		return nil, fault.New(errcode.Unavailable, "this relay is draining: connect to another one")
	case !h.cfg.Agents.Ready():
		return nil, fault.New(errcode.Unavailable, "this relay has not read the directory of agents yet: try again")
	}
	id, err := strconv.ParseInt(r.Header.Get(HeaderAgent), 10, 64)
	if err != nil || id <= 0 {
		return nil, fault.New(errcode.Unauthenticated, "header %s must be the id of an agent", HeaderAgent)
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	if err != nil {
		return nil, fault.New(errcode.Unauthenticated, "the agent's token is malformed")
	}
	agent, found := h.cfg.Agents.Agent(id)
	if err := authenticate(id, agent, found, hash, h.cfg.Now()); err != nil {
		return nil, err
	}
	namespace, name, _ := strings.Cut(headerText(r, HeaderPod), "/")
	c := &connection{hash: hash, configStreamOpened: make(chan struct{}), Connection: registry.Connection{
		AgentID: id, ID: newID(), RelayID: h.cfg.RelayID, ProjectID: agent.ProjectID,
		Version: headerText(r, HeaderVersion), Commit: headerText(r, HeaderCommit), PodNamespace: namespace, PodName: name,
		ConnectedAt: h.cfg.Now().UTC().Truncate(time.Millisecond),
	}}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.open >= h.cfg.MaxConnections:
		h.cfg.Refused(limitConnections)
		return nil, fault.New(errcode.Unavailable,
			"this relay has %d connections of agents, its maximum: connect to another one",
			h.open)
	case h.openPerAgent[id] >= h.cfg.MaxConnectionsPerAgent:
		h.cfg.Refused(limitAgentConnections)
		return nil, fault.New(errcode.Unavailable,
			"agent %d has %d connections to this relay, the maximum: connect to another one",
			id, h.openPerAgent[id])
	}
	h.open++
	h.openPerAgent[id]++
	return c, nil
}

// authenticate returns an error unless the hash is that of a valid token of the agent, and the agent is not revoked.
func authenticate(id int64, agent directory.Agent, found bool, hash natsauth.TokenHash, now time.Time) error {
	switch {
	case !found || !agent.Accepts(hash, now):
		return fault.New(errcode.Unauthenticated, "invalid token for agent %d", id)
	case agent.Revoked:
		return fault.New(errcode.PermissionDenied, "agent %d is revoked: register another one", id)
	}
	return nil
}

// headerText is a header of an agent, bounded and valid UTF-8.
func headerText(r *http.Request, header string) string {
	value := r.Header.Get(header)
	return strings.ToValidUTF8(value[:min(len(value), maxHeaderValue)], "?")
}

// newID is a random positive number of 63 bits.
func newID() int64 {
	var raw [8]byte
	for {
		rand.Read(raw[:]) // never fails
		if id := int64(binary.BigEndian.Uint64(raw[:]) >> 1); id > 0 {
			return id
		}
	}
}

// Connections returns the number of open connections.
func (h *Handler) Connections() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

func (h *Handler) release(agent int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
	if h.openPerAgent[agent]--; h.openPerAgent[agent] == 0 {
		delete(h.openPerAgent, agent)
	}
	if h.open == 0 && h.allClosed != nil {
		close(h.allClosed)
		h.allClosed = nil
	}
}

// Drain waits until all connections are closed and reported to the observer, or until drainCtx is done. Drain
// the sessions first.
func (h *Handler) Drain(drainCtx context.Context) {
	h.mu.Lock()
	if h.open == 0 {
		h.mu.Unlock()
		return
	}
	if h.allClosed == nil {
		h.allClosed = make(chan struct{})
	}
	allClosed := h.allClosed
	h.mu.Unlock()
	select {
	case <-allClosed:
	case <-drainCtx.Done():
	}
}

// serve serves a tunnel until it ends.
func (h *Handler) serve(ctx context.Context, c *connection, conn net.Conn, encrypted bool) {
	defer h.release(c.AgentID)
	c.session = tunnel.NewSession(conn, false, encrypted, h.cfg.Tunnel, func(s *tunnel.Stream) { h.serveStream(c, s) })
	ended := make(chan error, 1)
	go func() { ended <- h.cfg.Sessions.Serve(c.session) }()
	timeout := time.NewTimer(h.cfg.ConfigStreamTimeout)
	defer timeout.Stop()
	select {
	case <-c.configStreamOpened:
		h.use(ctx, c)
	case <-c.session.Done():
	case <-timeout.C:
		_ = c.session.Close() // always nil
	}
	err := <-ended
	h.cfg.Logger.DebugContext(ctx, "tunnel of an agent ended", slog.Int64(logkey.AgentID, c.AgentID),
		slog.Int64(logkey.ConnectionID, c.ID), logkey.Error(err))
}

// use makes the connection available until it ends or drains.
func (h *Handler) use(ctx context.Context, c *connection) {
	log := h.cfg.Logger.With(slog.Int64(logkey.AgentID, c.AgentID), slog.Int64(logkey.ConnectionID, c.ID),
		slog.String(logkey.Pod, c.PodNamespace+"/"+c.PodName))
	if !h.addConnected(c) { // the agent was revoked during the handshake
		_ = c.session.Close() // always nil
		return
	}
	remove := h.cfg.Pool.Add(c.Connection, c.session)
	h.cfg.Observer.Connected(c.Connection)
	log.InfoContext(ctx, "agent connected", slog.String(logkey.Version, c.Version))
	select {
	case <-c.session.PeerDraining():
	case <-c.session.LocalDraining():
	case <-c.session.Done():
	}
	reason := disconnectReason(c.session)
	remove()
	if h.isRevoked(c) {
		reason = events.DisconnectReasonRevoked
	}
	h.cfg.Observer.Disconnected(c.Connection, h.cfg.Now(), reason)
	log.InfoContext(ctx, "agent disconnected", slog.String(logkey.Reason, string(reason)))
	<-c.session.Done() // a draining session stays revocable: its streams may last for hours
	h.removeConnected(c)
}

// disconnectReason of a session. When this relay drains, the agent drains, too, and then the session ends. So check
// in this order: this relay drains, the agent drains, lost.
func disconnectReason(s *tunnel.Session) events.DisconnectReason {
	select {
	case <-s.LocalDraining():
		return events.DisconnectReasonRelayLeft
	default:
	}
	select {
	case <-s.PeerDraining():
		return events.DisconnectReasonAgentLeft
	default:
	}
	return events.DisconnectReasonLost
}

func (h *Handler) addConnected(c *connection) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	agent, found := h.cfg.Agents.Agent(c.AgentID)
	if c.revoked = authenticate(c.AgentID, agent, found, c.hash, h.cfg.Now()); c.revoked != nil {
		return false
	}
	if h.connected[c.AgentID] == nil {
		h.connected[c.AgentID] = map[int64]*connection{}
	}
	h.connected[c.AgentID][c.ID] = c
	return true
}

func (h *Handler) isRevoked(c *connection) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return c.revoked != nil
}

func (h *Handler) removeConnected(c *connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.connected[c.AgentID], c.ID)
	if len(h.connected[c.AgentID]) == 0 {
		delete(h.connected, c.AgentID)
	}
}

var errOtherStream = errors.New("an agent may open only its configuration stream")

// emptyConfig is sent to an agent without a configuration.
var emptyConfig = []byte("{}")

// serveStream sends the agent's configuration, and every change of it, on a stream that the agent has opened.
func (h *Handler) serveStream(c *connection, s *tunnel.Stream) {
	if string(s.Metadata()) != ConfigStreamMetadata || !c.configStream.CompareAndSwap(false, true) {
		s.Reset(tunnel.Refused, errOtherStream.Error())
		return
	}
	defer c.configStream.Store(false)
	defer s.Reset(tunnel.Cancelled, "the relay no longer sends the configuration")
	for {
		line, changed := h.cfg.AgentConfigs.AgentConfig(c.AgentID)
		if len(line) == 0 {
			line = emptyConfig
		}
		if _, err := s.Write(append(slices.Clip(line), '\n')); err != nil {
			return
		}
		c.configStreamOnce.Do(func() { close(c.configStreamOpened) })
		select {
		case <-changed:
		case <-c.session.LocalDraining():
			return
		case <-c.session.PeerDraining():
			return
		case <-c.session.Done():
			return
		}
	}
}

// Run closes connections of agents that lose access, until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	for {
		changed := h.cfg.Agents.Changed()
		end := time.NewTimer(h.closeRevoked(ctx))
		select {
		case <-changed:
		case <-end.C:
		case <-ctx.Done():
		}
		end.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// noTokenEnds is longer than the time between two changes of the directory.
const noTokenEnds = 24 * time.Hour

// closeRevoked closes the connections of agents that are revoked, and of tokens that have ended. It returns the time
// until the next token of a connected agent ends.
func (h *Handler) closeRevoked(ctx context.Context) time.Duration {
	h.mu.Lock()
	var revoked []*connection
	now, next := h.cfg.Now(), noTokenEnds
	for id, connections := range h.connected {
		agent, found := h.cfg.Agents.Agent(id)
		if left := agent.PreviousTokenValidUntil.Sub(now); left > 0 {
			next = min(next, left)
		}
		for _, c := range connections {
			if err := authenticate(id, agent, found, c.hash, now); err != nil {
				c.revoked = fmt.Errorf("revoked: %w", err)
				revoked = append(revoked, c)
			}
		}
	}
	h.mu.Unlock()
	for _, c := range revoked {
		h.cfg.Logger.WarnContext(ctx, "closed the connection of a revoked agent", slog.Int64(logkey.AgentID, c.AgentID),
			slog.Int64(logkey.ConnectionID, c.ID), logkey.Error(c.revoked))
		_ = c.session.Close() // always nil
	}
	return next
}
