package connections

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

const (
	// probeTimeout is how long a request has no answer before its replica is probed, and how long a replica may take to
	// respond.
	probeTimeout = 500 * time.Millisecond
	// maxProbePause between two probes for one request. The first pause is probeTimeout; each is twice as long as the
	// one before.
	maxProbePause = 5 * time.Second
)

// ErrSilent is the error of a request whose replica does not respond, such as one that was stopped. The replica may
// still receive what was sent.
var ErrSilent = errors.New("the agent does not respond")

// AwaitAnswer calls wait, which waits for the first answer on a stream. If the replica does not respond meanwhile, and
// the request may use a connection that it has not tried, AwaitAnswer resets the stream and returns [ErrSilent].
func (p *Pool) AwaitAnswer(state *RetryState, on *Stream, to route.Destination, wait func() error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tried := maps.Clone(state.tried) // the probes run beside the request
	var decided atomic.Bool          // by an answer or by a probe
	probes := time.AfterFunc(probeTimeout, func() {
		for pause := probeTimeout; ctx.Err() == nil; pause = min(2*pause, maxProbePause) {
			if p.hasOther(to, on.Connection, tried) && p.isSilent(ctx, on.Connection, to) {
				if decided.CompareAndSwap(false, true) {
					on.Reset(tunnel.Cancelled, "the agent did not respond")
				}
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	})
	defer probes.Stop()
	err := wait()
	if !decided.CompareAndSwap(false, true) {
		return ErrSilent
	}
	return err
}

// hasOther reports whether there is a connection besides one, and those that were tried.
func (p *Pool) hasOther(to route.Destination, one registry.Connection, tried map[int64]bool) bool {
	excluded := map[int64]bool{one.ID: true}
	maps.Copy(excluded, tried)
	return route.Decide(p.connections(to.AgentID), p.cfg.Self, to.ConnectionID, excluded, rand.IntN).Connection != nil
}

// isSilent reports whether the replica of a connection does not respond to a probe, or its relay does not. One that
// drains or is gone is not silent: its streams end, or fail.
func (p *Pool) isSilent(ctx context.Context, c registry.Connection, to route.Destination) bool {
	if local, found := p.get(c.AgentID, c.ID); found || c.RelayID == p.cfg.Self {
		return found && !responds(ctx, local.session)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*probeTimeout)
	defer cancel()
	session, err := p.session(ctx, route.Decision{Connection: &c})
	if err != nil {
		return ctx.Err() != nil
	}
	to.ConnectionID, to.Probe = c.ID, true
	probe, err := session.Open(to.Encode())
	if err != nil {
		return false
	}
	defer probe.Reset(tunnel.Cancelled, "the probe is over")
	stop := context.AfterFunc(ctx, func() { probe.Reset(tunnel.Cancelled, "the relay did not respond") })
	err = probe.WaitAccepted()
	var reset *tunnel.ResetError
	return !stop() || errors.As(err, &reset) && reset.Reason == tunnel.Unreachable
}

// serveProbe answers another relay whether a replica responds.
func serveProbe(from *tunnel.Stream, session *tunnel.Session) {
	if !responds(context.Background(), session) {
		from.Reset(tunnel.Unreachable, ErrSilent.Error())
		return
	}
	_ = from.Accept() // the next use of the stream returns the error
	_ = from.Close()  // always nil
}

func responds(ctx context.Context, session *tunnel.Session) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return session.Responds(ctx)
}
