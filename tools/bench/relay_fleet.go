package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"
)

// Questions to a fleet of agents, each followed by numbers.
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
	URL  string
	// First is the id of the first agent; the others follow.
	First        int64
	HTTP, Stream string
}

// fleetOfAgents is many agents in one process: what is measured is how relays bear them.
type fleetOfAgents struct {
	cfg fleetConfig
	tls *tls.Config

	mu      sync.Mutex
	times   []int // that each agent has connected
	last    time.Time
	changed chan struct{} // closed and replaced at each
	leave   context.CancelFunc
	ctx     context.Context //nolint:containedctx // of those that are connected
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
	for i := len(f.times); i < n; i++ {
		f.times = append(f.times, 0)
		f.running.Go(func() { f.stay(i) })
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
	f.leave()
	f.running.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times = nil
	f.ctx, f.leave = context.WithCancel(context.Background())
}

// stay connected, as an agent of either does.
func (f *fleetOfAgents) stay(i int) {
	agent := f.cfg.First + int64(i)
	for failures := 0; f.ctx.Err() == nil; {
		pause := peerPause
		if f.cfg.Peer {
			_ = connectPeer(f.ctx, f.cfg.URL, strconv.FormatInt(agent, 10), f.tls, func() { f.connected(i) }) // tried again
		} else if f.session(i, agent) {
			failures = 0
			pause = again(failures)
		} else {
			failures++
			pause = again(failures)
		}
		select {
		case <-time.After(pause):
		case <-f.ctx.Done():
		}
	}
}

// session is one connection, until it ends; false when there was none.
func (f *fleetOfAgents) session(i int, agent int64) bool {
	s, err := connectAgent(f.ctx, f.cfg.URL, agent, f.tls, map[string]string{httpName: f.cfg.HTTP, streamName: f.cfg.Stream})
	if err != nil {
		return false // tried again
	}
	f.connected(i)
	select {
	case <-s.Done():
	case <-f.ctx.Done():
		_ = s.Close()
	}
	return true
}

// peerPause is that of remotedialer's ClientConnect.
const peerPause = 5 * time.Second

// again is the pause before the next attempt.
func again(failures int) time.Duration {
	return time.Duration(rand.Float64() * min(20, math.Pow(1.6, float64(failures))) * float64(time.Second))
}
