package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// fleet starts a process for many agents of these relays.
func (b *relayBed) fleet(ctx context.Context, r *relays, n int) (*child, error) {
	if r.enter != nil {
		if err := r.enter(ctx, fleetAgent, n); err != nil {
			return nil, err
		}
	}
	kind, peer := childFleet, r.name == peerName
	if peer {
		kind = childPeerFleet
	}
	return b.start(ctx, kind, fleetConfig{
		certified: b.certified, Peer: peer, URL: r.address() + r.path, Token: r.token, First: fleetAgent,
		Targets: map[string]string{httpName: b.target.addrs[targetHTTP], streamName: b.target.addrs[targetStream]},
	})
}

// onRelayBed runs fn on a bed of its own.
func onRelayBed(ctx context.Context, size Size, secure bool, fn func(*relayBed) error) (err error) {
	parts := &fixture{profile: size.Profile}
	defer parts.close(ctx, &err)
	b, err := newRelayBed(ctx, parts, secure)
	if err != nil {
		return err
	}
	return fn(b)
}

// both are relays of Lockstep and of the peer, each with a process for n agents that are not connected yet.
func (b *relayBed) both(ctx context.Context, hops, n int) (ours, peer *relays, fleets [2]*child, err error) {
	if ours, err = b.lockstep(ctx, hops); err != nil {
		return nil, nil, fleets, err
	}
	if peer, err = b.remotedialer(ctx, hops); err != nil {
		return nil, nil, fleets, err
	}
	for i, r := range []*relays{ours, peer} {
		if fleets[i], err = b.fleet(ctx, r, n); err != nil {
			return nil, nil, fleets, err
		}
	}
	return ours, peer, fleets, nil
}

func measureWait(hops int) func(context.Context, Measured, Size) error {
	return func(ctx context.Context, measured Measured, size Size) error {
		return onRelayBed(ctx, size, false, func(b *relayBed) error {
			ours, peer, fleets, err := b.both(ctx, hops, 1)
			if err != nil {
				return err
			}
			var waited, known, asked []float64
			into := func(values *[]float64, measure func(context.Context, way, *child) (float64, error), r *relays, fleet *child) func(context.Context, int) error {
				return func(ctx context.Context, _ int) error {
					value, err := measure(ctx, r.way(fleetAgent), fleet)
					*values = append(*values, value)
					return err
				}
			}
			if err := rotate(ctx, size.For/2, into(&waited, waitForAgent, ours, fleets[0]), into(&known, askAgent, ours, fleets[0]), into(&asked, waitForAgent, peer, fleets[1])); err != nil {
				return err
			}
			m := beside(median(waited), median(known))
			m.Peers = map[string]float64{peerName: median(asked)}
			m.Note = fmt.Sprintf("%d times", len(waited))
			measured["wait_ms"] = m
			return nil
		})
	}
}

// settled is how long what was begun or ended before takes to be so for everybody: an agent that left is no more known, a request waits.
const settled = 30 * time.Millisecond

func settle(ctx context.Context) error {
	timer := time.NewTimer(settled)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until it is quiet: %w", context.Cause(ctx))
	}
}

// waitForAgent is how many milliseconds a request took that waits for an agent, from when the agent begins to connect.
func waitForAgent(ctx context.Context, w way, fleet *child) (float64, error) {
	conn, err := w.ask(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // nothing follows
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	type answer struct {
		at  time.Time
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		err := askUntilAnswered(conn, w.request())
		answered <- answer{time.Now(), err}
	}()
	if err := settle(ctx); err != nil {
		return 0, errors.Join(err, conn.Close(), (<-answered).err)
	}
	r, errFleet := fleet.question(ctx, fmt.Sprintf(askConnect, 1))
	if errFleet != nil {
		_ = conn.Close() // nobody answers any more
	}
	a := <-answered
	if err := errors.Join(errFleet, a.err); err != nil {
		return 0, fmt.Errorf("wait for an agent through %s: %w", w.name, err)
	}
	return milliseconds(a.at.Sub(r.Began)), leaveAgain(ctx, fleet)
}

func leaveAgain(ctx context.Context, fleet *child) error {
	if _, err := fleet.question(ctx, askLeave); err != nil {
		return err
	}
	return settle(ctx)
}

// reached waits until the target answers.
func (w way) reached(ctx context.Context) error {
	conn, err := w.ask(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing follows
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := askUntilAnswered(conn, w.request()); err != nil {
		return fmt.Errorf("ask through %s: %w", w.name, err)
	}
	return nil
}

// askUntilAnswered asks again where nobody waits for an agent, at once but for what keeps the machine usable.
func askUntilAnswered(conn net.Conn, request []byte) error {
	const pause = time.Millisecond
	reader := bufio.NewReader(conn)
	for {
		if _, err := conn.Write(request); err != nil {
			return fmt.Errorf("ask: %w", err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		if response.StatusCode == http.StatusOK {
			return nil
		}
		time.Sleep(pause)
	}
}

// askAgent is how many milliseconds an agent took to connect, and a request that was sent then to be answered.
func askAgent(ctx context.Context, w way, fleet *child) (float64, error) {
	conn, err := w.ask(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // nothing follows
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	r, err := fleet.question(ctx, fmt.Sprintf(askConnect, 1))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := askUntilAnswered(conn, w.request()); err != nil {
		return 0, fmt.Errorf("ask through %s: %w", w.name, err)
	}
	return milliseconds(time.Since(began) + r.Ended.Sub(r.Began)), leaveAgain(ctx, fleet)
}

func measureHeld(secure bool) func(context.Context, Measured, Size) error {
	return func(ctx context.Context, measured Measured, size Size) error {
		return onRelayBed(ctx, size, secure, func(b *relayBed) error {
			n := size.of(manyAgents)
			ours, peer, fleets, err := b.both(ctx, 1, n)
			if err != nil {
				return err
			}
			held := func(c *child, grow func() error) (float64, error) { return heldFor(ctx, n, c, grow) }
			// What is the same for every agent of one is that of the other.
			var agents, tunnels [2]float64
			for i, r := range []*relays{ours, peer} {
				if agents[i], err = held(r.last, func() error {
					_, err := fleets[i].question(ctx, fmt.Sprintf(askConnect, n))
					return err
				}); err != nil {
					return err
				}
				if !secure && size.wants("kb_per_tunnel") {
					if tunnels[i], err = held(r.last, func() error { return b.openAll(ctx, n, r.way) }); err != nil {
						return err
					}
				}
			}
			bare, err := held(b.target, func() error { return b.openAll(ctx, n, func(int64) way { return b.direct() }) })
			if err != nil {
				return err
			}
			of := func(values [2]float64) Measurement {
				m := beside(values[0], bare)
				m.Peers = map[string]float64{peerName: values[1]}
				m.Note = fmt.Sprintf("%d agents", n)
				return m
			}
			if secure {
				measured["kb_per_agent_tls"] = of(agents)
				return nil
			}
			measured["kb_per_agent"] = of(agents)
			if size.wants("kb_per_tunnel") {
				measured["kb_per_tunnel"] = of(tunnels)
			}
			return nil
		})
	}
}

// heldFor is how many KB a process holds more for each of n.
func heldFor(ctx context.Context, n int, c *child, grow func() error) (float64, error) {
	before, err := c.ask(ctx, askHeld)
	if err != nil {
		return 0, err
	}
	if err := grow(); err != nil {
		return 0, err
	}
	after, err := c.ask(ctx, askHeld)
	return (after - before) / float64(n) / 1024, err
}

// openAll opens a stream to each of n agents, which lasts as long as the bed.
func (b *relayBed) openAll(ctx context.Context, n int, to func(agent int64) way) error {
	for i := range n {
		conn, err := to(fleetAgent + int64(i)).open(ctx)
		if err != nil {
			return err
		}
		b.parts.onClose(func(context.Context) error {
			_ = conn.Close() // nothing follows
			return nil
		})
		if err := echo(conn); err != nil {
			return err
		}
	}
	return nil
}

func measureReconnect(ctx context.Context, measured Measured, size Size) error {
	return onRelayBed(ctx, size, false, func(b *relayBed) error {
		n := size.of(manyAgents)
		ours, peer, fleets, err := b.both(ctx, 1, n)
		if err != nil {
			return err
		}
		var took [2]float64
		var first time.Duration
		for i, r := range []*relays{ours, peer} {
			connected, err := fleets[i].question(ctx, fmt.Sprintf(askConnect, n))
			if err != nil {
				return err
			}
			if i == 0 {
				first = connected.Ended.Sub(connected.Began)
			}
			began, err := r.restart(ctx)
			if err != nil {
				return fmt.Errorf("start %s again: %w", r.name, err)
			}
			back, err := fleets[i].question(ctx, fmt.Sprintf(askTimes, 2, n))
			if err != nil {
				return err
			}
			took[i] = back.Ended.Sub(began).Seconds()
		}
		measured["reconnect_s"] = Measurement{
			Value: took[0], Peers: map[string]float64{peerName: took[1]},
			Note: fmt.Sprintf("%d agents, which all connected at once in %.2f s before", n, first.Seconds()),
		}
		return nil
	})
}
