// Package peer carries streams between relays: from the relay that received a request to the relay with the
// agent's connection.
//
// A [Pool] keeps a few tunnels to each relay in use; a [Handler] accepts those of other relays. A relay
// authenticates each tunnel with a token that only the other relay accepts, for seconds. Only the relay that took the
// request opens streams, and the other one never forwards a stream again, so there are no routing loops.
package peer

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

const (
	// DefaultTunnels to each relay: streams in different tunnels do not delay each other.
	DefaultTunnels = 4
	dialTimeout    = 10 * time.Second
	// tunnelPath is the path of the URL that relays dial. The listener accepts every path.
	tunnelPath = "/tunnel"
)

// Config of a [Pool]. Dialer and Token are required.
type Config struct {
	Dialer tunnel.Dialer
	// Token returns a token that only the relay with this id accepts.
	Token func(relayID string) (string, error)
	// Tunnels to each relay. Defaults to [DefaultTunnels].
	Tunnels int
	Tunnel  tunnel.Config
}

// Pool keeps tunnels to other relays. It may be used by many goroutines.
type Pool struct {
	cfg        Config
	next       atomic.Uint32
	goroutines sync.WaitGroup
	sessions   tunnel.SessionGroup
	ctx        context.Context //nolint:containedctx // ends with the pool
	cancel     context.CancelFunc

	mu      sync.Mutex
	closed  bool
	tunnels map[tunnelKey]*peerTunnel
}

// tunnelKey is one of the tunnels to a relay.
type tunnelKey struct {
	relay string
	n     int
}

// peerTunnel is a tunnel that is open or being dialled.
type peerTunnel struct {
	dialled chan struct{} // closed when session or err is set
	session *tunnel.Session
	err     error
}

// NewPool makes a pool without tunnels.
func NewPool(cfg Config) *Pool {
	if cfg.Tunnels == 0 {
		cfg.Tunnels = DefaultTunnels
	}
	p := &Pool{cfg: cfg, tunnels: map[tunnelKey]*peerTunnel{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Session returns a session with the relay, and dials if necessary.
func (p *Pool) Session(ctx context.Context, relay registry.Relay) (*tunnel.Session, error) {
	t, err := p.tunnel(relay)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.dialled:
		return t.session, t.err
	case <-ctx.Done():
		return nil, fmt.Errorf("open a tunnel to relay %s: %w", relay.ID, context.Cause(ctx))
	}
}

func (p *Pool) tunnel(relay registry.Relay) (*peerTunnel, error) {
	key := tunnelKey{relay.ID, int(p.next.Add(1)) % p.cfg.Tunnels}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, tunnel.ErrClosed
	}
	if t := p.tunnels[key]; t != nil {
		return t, nil
	}
	t := &peerTunnel{dialled: make(chan struct{})}
	p.tunnels[key] = t
	p.goroutines.Go(func() { p.run(relay, key, t) })
	return t, nil
}

// run dials a tunnel and serves it until it ends. When the other side drains it, the next request dials another one.
func (p *Pool) run(relay registry.Relay, key tunnelKey, t *peerTunnel) {
	t.session, t.err = p.dial(relay)
	close(t.dialled)
	if t.err == nil {
		stop := context.AfterFunc(p.ctx, func() { _ = t.session.Close() })
		ended := make(chan struct{})
		p.goroutines.Go(func() {
			defer close(ended)
			defer stop()
			_ = p.sessions.Serve(t.session) // its streams report the error
		})
		select {
		case <-ended:
		case <-t.session.PeerDraining():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tunnels[key] == t {
		delete(p.tunnels, key)
	}
}

func (p *Pool) dial(relay registry.Relay) (*tunnel.Session, error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	token, err := p.cfg.Token(relay.ID)
	if err != nil {
		return nil, err
	}
	c, err := p.cfg.Dialer.Dial(ctx, relay.URL+tunnelPath, http.Header{"Authorization": {"Bearer " + token}})
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", relay.ID, err)
	}
	return tunnel.NewSession(c.Conn, true, c.Encrypted, p.cfg.Tunnel, func(s *tunnel.Stream) {
		s.Reset(tunnel.Refused, "only the relay that dialled opens streams")
	}), nil
}

// Streams that are open to other relays.
func (p *Pool) Streams() int {
	dialled, _ := p.sessions.Streams()
	return dialled
}

// Close closes all tunnels and waits for their end.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.goroutines.Wait()
}
