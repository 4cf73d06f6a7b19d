package watcher

import (
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// Resync is one full resync.
type Resync struct {
	ID       string
	Cause    events.ResyncCause
	Nonce    string
	Versions map[kube.Kind]string
	Count    int
}

// Plan decides when a full resync runs and why. At most one runs; what is asked for while one runs, or before one has
// begun, becomes the next: its strongest cause, its latest nonce. It is pure and not safe for concurrent use.
type Plan struct {
	interval time.Duration
	last     time.Time // when the last one began
	running  *request
	next     *request
}

type request struct {
	cause   events.ResyncCause
	nonce   string
	waiting []chan struct{}
}

// NewPlan begins with a resync for the cause a term begins with.
func NewPlan(cause events.ResyncCause, interval time.Duration) *Plan {
	return &Plan{interval: interval, next: &request{cause: cause}}
}

// strength orders causes: the word for a resync that has several.
func strength(cause events.ResyncCause) int {
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

// Ask asks for a resync. The channel is closed when one that begins after this call has ended. A nonce that the running resync
// answers already is answered by it.
func (p *Plan) Ask(cause events.ResyncCause, nonce string) <-chan struct{} {
	ended := make(chan struct{})
	if p.running != nil && nonce != "" && p.running.nonce == nonce {
		p.running.waiting = append(p.running.waiting, ended)
		return ended
	}
	if p.next == nil {
		p.next = &request{cause: cause}
	}
	if strength(cause) > strength(p.next.cause) {
		p.next.cause = cause
	}
	if nonce != "" {
		p.next.nonce = nonce
	}
	p.next.waiting = append(p.next.waiting, ended)
	return ended
}

// SetInterval sets the time from one resync's begin to the next one's.
func (p *Plan) SetInterval(interval time.Duration) { p.interval = interval }

// Begin returns the resync that is to run now, if one is, and how long there is to wait otherwise.
func (p *Plan) Begin(now time.Time, id string) (Resync, time.Duration, bool) {
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

// Begun tells that no resync is waiting to begin and one has.
func (p *Plan) Begun() bool { return !p.last.IsZero() }

// End says that the running resync has been sent whole, and closes the channels of who asked for it.
func (p *Plan) End() {
	for _, waiting := range p.running.waiting {
		close(waiting)
	}
	p.running = nil
}
