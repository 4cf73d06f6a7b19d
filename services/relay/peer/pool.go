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
	// DefaultTunnels to each relay: what one of them carries does not wait for what another does.
	DefaultTunnels = 4
	// dialTimeout bounds how long requests wait for a tunnel to another relay.
	dialTimeout = 10 * time.Second
	// Path of tunnels on a relay's listeners.
	Path = "/tunnel"
)

// Config of a [Pool]. Dialer and Token are required.
type Config struct {
	Dialer tunnel.Dialer
	// Token that another relay accepts.
	Token func() (string, error)
	// Tunnels to each relay. Defaults to [DefaultTunnels].
	Tunnels int
	Tunnel  tunnel.Config
}

// Pool is made by [NewPool]. It may be used by many goroutines.
type Pool struct {
	cfg  Config
	turn atomic.Uint32

	mu      sync.Mutex
	closed  bool
	links   map[place]*link
	running sync.WaitGroup
	serving tunnel.Sessions
	life    context.Context //nolint:containedctx // ends with the pool
	end     context.CancelFunc
}

// place is one of the tunnels to a relay.
type place struct {
	relay string
	n     int
}

// link is a tunnel that is being opened, or is open.
type link struct {
	opened  chan struct{}
	session *tunnel.Session
	err     error
}

// NewPool makes a pool without tunnels.
func NewPool(cfg Config) *Pool {
	if cfg.Tunnels == 0 {
		cfg.Tunnels = DefaultTunnels
	}
	p := &Pool{cfg: cfg, links: map[place]*link{}}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// Session returns a tunnel to the relay, and opens it if need be.
func (p *Pool) Session(ctx context.Context, relay registry.Relay) (*tunnel.Session, error) {
	l, err := p.link(relay)
	if err != nil {
		return nil, err
	}
	select {
	case <-l.opened:
		return l.session, l.err
	case <-ctx.Done():
		return nil, fmt.Errorf("open a tunnel to relay %s: %w", relay.ID, context.Cause(ctx))
	}
}

func (p *Pool) link(relay registry.Relay) (*link, error) {
	at := place{relay.ID, int(p.turn.Add(1)) % p.cfg.Tunnels}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, tunnel.ErrClosed
	}
	if l := p.links[at]; l != nil {
		return l, nil
	}
	l := &link{opened: make(chan struct{})}
	p.links[at] = l
	p.running.Go(func() { p.keep(relay, at, l) })
	return l, nil
}

// keep opens a tunnel, and serves it until it ends. Who comes once the other side drains it gets another one.
func (p *Pool) keep(relay registry.Relay, at place, l *link) {
	l.session, l.err = p.open(relay)
	close(l.opened)
	if l.err == nil {
		stop := context.AfterFunc(p.life, func() { _ = l.session.Close() })
		ended := make(chan struct{})
		p.running.Go(func() {
			defer close(ended)
			defer stop()
			_ = p.serving.Serve(l.session) // its streams say why
		})
		select {
		case <-ended:
		case <-l.session.Drained():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links[at] == l {
		delete(p.links, at)
	}
}

func (p *Pool) open(relay registry.Relay) (*tunnel.Session, error) {
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	token, err := p.cfg.Token()
	if err != nil {
		return nil, err
	}
	conn, err := p.cfg.Dialer.Dial(ctx, relay.URL+Path, http.Header{"Authorization": {"Bearer " + token}})
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", relay.ID, err)
	}
	return tunnel.NewSession(conn.Conn, true, conn.Secret, p.cfg.Tunnel, func(s *tunnel.Stream) {
		s.Reset(tunnel.Refused, "streams between relays are opened by who took the request")
	}), nil
}

// Streams that are open to other relays.
func (p *Pool) Streams() int {
	opened, _ := p.serving.Streams()
	return opened
}

// Close ends all tunnels and waits for their end.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	p.running.Wait()
}
