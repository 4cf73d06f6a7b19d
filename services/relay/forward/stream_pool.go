package forward

import (
	"bufio"
	"maps"
	"slices"
	"sync"
	"time"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

const (
	// maxIdleTime of a stream in the pool.
	maxIdleTime = 30 * time.Second
	// maxStreamAge is the age after which a stream is not reused, so that the target's name is resolved again.
	maxStreamAge = time.Minute
	// maxIdleStreams of one agent, so that idle ones leave room below max_streams of the agent.
	maxIdleStreams = 256
)

// pooledStream is a stream that is reused for several requests, one at a time.
type pooledStream struct {
	*connections.Stream

	to     route.Destination
	opened time.Time
	head   *headLimit
	reader *bufio.Reader
	writer *bufio.Writer
	timer  *time.Timer
	reused bool // it has carried a request before
	// repeatable streams carry only requests that may be repeated, and are pooled.
	repeatable bool
}

// streamPool keeps idle streams for the next request to the same destination.
type streamPool struct {
	mu   sync.Mutex
	idle map[route.Destination][]*pooledStream
	// perAgent counts the idle streams of each agent.
	perAgent map[int64]int
	// evicted connections, and until when to remember each: until their streams are too old to be reused.
	evicted map[int64]time.Time
}

func newStreamPool() streamPool {
	return streamPool{
		idle: map[route.Destination][]*pooledStream{}, perAgent: map[int64]int{}, evicted: map[int64]time.Time{},
	}
}

// get takes an idle stream from the pool; nil if there is none.
func (p *streamPool) get(to route.Destination) *pooledStream {
	for {
		p.mu.Lock()
		idle := p.idle[to]
		if len(idle) == 0 {
			p.mu.Unlock()
			return nil
		}
		s := idle[len(idle)-1]
		p.set(to, idle[:len(idle)-1])
		p.mu.Unlock()
		if s.timer.Stop() && s.Idle() {
			s.reused = true
			return s
		}
		s.Reset(tunnel.Cancelled, "the stream was idle for too long")
	}
}

func (p *streamPool) set(to route.Destination, idle []*pooledStream) {
	if p.perAgent[to.AgentID] += len(idle) - len(p.idle[to]); p.perAgent[to.AgentID] == 0 {
		delete(p.perAgent, to.AgentID)
	}
	if len(idle) == 0 {
		delete(p.idle, to)
	} else {
		p.idle[to] = idle
	}
}

// put returns a stream to the pool, or closes it.
func (p *streamPool) put(s *pooledStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, evicted := p.evicted[s.Connection.ID]
	if evicted || p.perAgent[s.to.AgentID] >= maxIdleStreams || time.Since(s.opened) > maxStreamAge {
		s.Reset(tunnel.Cancelled, "the stream is not needed")
		return
	}
	p.set(s.to, append(p.idle[s.to], s))
	if s.timer == nil {
		s.timer = time.AfterFunc(maxIdleTime, func() { p.expire(s) })
	} else {
		s.timer.Reset(maxIdleTime)
	}
}

func (p *streamPool) expire(s *pooledStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle[s.to]
	if i := slices.Index(idle, s); i >= 0 {
		p.set(s.to, slices.Delete(idle, i, i+1))
	}
	s.Reset(tunnel.Cancelled, "the stream was idle for too long")
}

// evict closes idle streams of a connection, and pools no more of them. It does not wait for a silent replica.
func (p *streamPool) evict(connectionID int64) {
	var evicted []*pooledStream
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.evicted, func(_ int64, until time.Time) bool { return now.After(until) })
	p.evicted[connectionID] = now.Add(maxStreamAge)
	for to, idle := range p.idle {
		p.set(to, slices.DeleteFunc(idle, func(s *pooledStream) bool {
			if s.Connection.ID != connectionID {
				return false
			}
			if s.timer.Stop() {
				evicted = append(evicted, s)
			}
			return true
		}))
	}
	go func() {
		for _, s := range evicted {
			s.Reset(tunnel.Cancelled, "the connection is no longer used")
		}
	}()
}

func (p *streamPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, idle := range p.idle {
		for _, s := range idle {
			if s.timer.Stop() {
				s.Reset(tunnel.Cancelled, "the relay stops")
			}
		}
	}
	clear(p.idle)
	clear(p.perAgent)
}
