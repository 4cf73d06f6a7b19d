// Package resync plans the full resyncs of one scope. It is pure.
package resync

import (
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// Resync is one full resync.
type Resync struct {
	ID       string
	Cause    events.ResyncCause
	Nonce    string
	Versions map[object.Kind]string // of the lists
	Known    map[object.Kind]string // highest known versions
	Count    int                    // of the members
}

// Plan decides when a full resync starts, and why. At most one runs. Requests made while one runs,
// or before the first, are merged into the next one: the cause with the highest priority and the latest nonce win.
// It is not safe for concurrent use.
type Plan struct {
	interval time.Duration
	last     time.Time // start of the last resync
	running  *request
	next     *request
}

type request struct {
	cause   events.ResyncCause
	nonce   string
	waiting []chan struct{}
}

// NewPlan makes a plan whose first resync is due at once.
func NewPlan(cause events.ResyncCause, interval time.Duration) *Plan {
	return &Plan{interval: interval, next: &request{cause: cause}}
}

// priority orders causes: a merged request keeps the cause with the highest priority.
func priority(cause events.ResyncCause) int {
	switch cause {
	case events.ResyncCauseStart, events.ResyncCauseLeaderElected:
		return 3
	case events.ResyncCauseRequested:
		return 2
	case events.ResyncCauseConfigChanged:
		return 1
	case events.ResyncCauseInterval:
		return 0
	default:
		return -1
	}
}

// Request requests a resync. The channel is closed when a resync that starts after this call has ended.
// If the running resync has the same nonce, it answers the request.
func (p *Plan) Request(cause events.ResyncCause, nonce string) <-chan struct{} {
	ended := make(chan struct{})
	if p.running != nil && nonce != "" && p.running.nonce == nonce {
		p.running.waiting = append(p.running.waiting, ended)
		return ended
	}
	if p.next == nil {
		p.next = &request{cause: cause}
	}
	if priority(cause) > priority(p.next.cause) {
		p.next.cause = cause
	}
	if nonce != "" {
		p.next.nonce = nonce
	}
	p.next.waiting = append(p.next.waiting, ended)
	return ended
}

// SetInterval sets the time between the starts of two resyncs.
func (p *Plan) SetInterval(interval time.Duration) { p.interval = interval }

// Start returns the resync to run now, or how long to wait for the next one.
func (p *Plan) Start(now time.Time, id string) (Resync, time.Duration, bool) {
	if p.running != nil {
		return Resync{}, p.interval, false
	}
	if p.next == nil {
		if wait := p.last.Add(p.interval).Sub(now); wait > 0 {
			return Resync{}, wait, false
		}
		p.next = &request{cause: events.ResyncCauseInterval}
	}
	p.running, p.next, p.last = p.next, nil, now
	return Resync{ID: id, Cause: p.running.cause, Nonce: p.running.nonce}, 0, true
}

// Started reports whether the first resync has started.
func (p *Plan) Started() bool { return !p.last.IsZero() }

// End records that the running resync has ended, and closes the channels of its requests.
func (p *Plan) End() {
	for _, waiting := range p.running.waiting {
		close(waiting)
	}
	p.running = nil
}
