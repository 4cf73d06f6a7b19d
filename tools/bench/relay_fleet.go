package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/agent/link"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// Questions to a fleet of agents, with numbers.
const (
	askConnect = "connect %d"  // have so many agents connected, and connect again when they are cut off; answered when all are
	askTimes   = "times %d %d" // answered when so many agents have connected so often
	askLeave   = "leave"       // disconnect all; answered when they have
)

// fleetConfig is what a fleet is started with.
type fleetConfig struct {
	certified

	// Peer is that they are agents of remotedialer.
	Peer bool
	// URL of the relay, and the token that all have.
	URL, Token string
	// First is the id of the first agent; the others follow.
	First int64
	// Targets that they lead to, by name.
	Targets map[string]string
}

// fleetOfAgents is many agents in one process: what is measured is how relays bear them. Those of Lockstep keep their connections as its agent does.
type fleetOfAgents struct {
	cfg fleetConfig
	tls *tls.Config

	mu      sync.Mutex
	times   []int // that each agent has connected
	last    time.Time
	changed chan struct{} // closed and replaced at each

	ctx     context.Context //nolint:containedctx // of those that are connected
	leave   context.CancelFunc
	running sync.WaitGroup
}

func newFleetOfAgents() *fleetOfAgents {
	f := &fleetOfAgents{changed: make(chan struct{})}
	f.ctx, f.leave = context.WithCancel(context.Background())
	return f
}

func (f *fleetOfAgents) serve(cfg fleetConfig, signals <-chan os.Signal, ready func(map[string]string)) error {
	hushRemotedialer()
	f.cfg = cfg
	var err error
	if f.tls, err = cfg.client(); err != nil {
		return err
	}
	ready(nil)
	<-signals
	f.disconnect()
	return nil
}

// answer answers what only a fleet is asked.
func (f *fleetOfAgents) answer(question string) reply {
	var agents, times int
	began := time.Now()
	switch {
	case question == askLeave:
		f.disconnect()
		return reply{Began: began, Ended: time.Now()}
	case scans(question, askConnect, &agents):
		f.connect(agents)
		return reply{Began: began, Ended: f.wait(1, agents)}
	case scans(question, askTimes, &times, &agents):
		return reply{Began: began, Ended: f.wait(times, agents)}
	}
	return reply{Error: fmt.Sprintf("%q is no question", question)}
}

func scans(question, format string, into ...any) bool {
	n, err := fmt.Sscanf(question, format, into...)
	return err == nil && n == len(into)
}

func (f *fleetOfAgents) connect(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx := f.ctx
	for i := len(f.times); i < n; i++ {
		f.times = append(f.times, 0)
		id := f.cfg.First + int64(i)
		if f.cfg.Peer {
			f.running.Go(func() { f.stayPeer(ctx, i, id) })
		} else {
			f.running.Go(func() { f.keeper(ctx, i, id).Run(ctx, ctx) })
		}
	}
}

// wait until so many agents have connected so often, and return when the last one did.
func (f *fleetOfAgents) wait(times, n int) time.Time {
	for {
		f.mu.Lock()
		done := 0
		for _, t := range f.times {
			if t >= times {
				done++
			}
		}
		last, changed, ctx := f.last, f.changed, f.ctx
		f.mu.Unlock()
		if done >= n {
			return last
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}
		}
	}
}

func (f *fleetOfAgents) connected(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times[i]++
	f.last = time.Now()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fleetOfAgents) disconnect() {
	f.mu.Lock()
	leave := f.leave
	f.mu.Unlock()
	leave()
	f.running.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times = nil
	f.ctx, f.leave = context.WithCancel(context.Background())
}

// keeper keeps the connection of an agent as the program does that runs in clusters.
func (f *fleetOfAgents) keeper(living context.Context, i int, id int64) *link.Connector {
	relay := agent.DefaultConfig().Relay
	return link.NewConnector(link.Config{
		Relay: f.cfg.URL,
		Dial: func(ctx context.Context) (link.Connection, error) {
			header := http.Header{}
			header.Set("Authorization", "Bearer "+f.cfg.Token)
			header.Set(agentlistener.HeaderAgent, strconv.FormatInt(id, 10))
			c, err := tunnel.Dialer{TLS: f.tls}.Dial(ctx, f.cfg.URL, header)
			return link.Connection{Conn: c.Conn, Encrypted: c.Encrypted}, err
		},
		Accept:    func(_ *tunnel.Session, st *tunnel.Stream) { f.join(living, st) },
		OnSession: follow,
		Backoff:   link.Backoff{Min: relay.RetryMin, Max: relay.RetryMax}, MaxAge: relay.MaxAge, DrainTimeout: relay.Linger, Logger: quiet(),
		OnOutcome: func(o link.Outcome) {
			if o == link.Connected {
				f.connected(i)
			}
		},
	})
}

// follow hears the configuration, and does nothing with it.
func follow(ctx context.Context, s *tunnel.Session) {
	st, err := s.Open([]byte(agentlistener.ConfigStreamHead))
	if err != nil {
		return // the session has ended
	}
	over := func() { st.Reset(tunnel.Cancelled, "the configuration is followed no more") }
	defer context.AfterFunc(ctx, over)()
	for lines := bufio.NewScanner(st); lines.Scan(); {
		continue
	}
}

func (f *fleetOfAgents) join(ctx context.Context, st *tunnel.Stream) {
	i, err := route.Decode(st.Head())
	if err != nil {
		st.Reset(tunnel.Refused, err.Error())
		return
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.cfg.Targets[i.Target])
	if err != nil {
		st.Reset(tunnel.Unreachable, err.Error())
		return
	}
	to, halves := conn.(tunnel.Conn)
	if !halves || st.Accept() != nil {
		_ = conn.Close() // nobody has used it
		return
	}
	if _, _, err := tunnel.Join(st, to); err != nil {
		return // both ends know why
	}
}

// peerPause is that of remotedialer's ClientConnect.
const peerPause = 5 * time.Second

// stayPeer keeps the connection of an agent of remotedialer, as its client does.
func (f *fleetOfAgents) stayPeer(ctx context.Context, i int, id int64) {
	for {
		_ = connectPeer(ctx, f.cfg.URL, strconv.FormatInt(id, 10), f.tls, func() { f.connected(i) }) // tried again
		select {
		case <-time.After(peerPause):
		case <-ctx.Done():
			return
		}
	}
}
