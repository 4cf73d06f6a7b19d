package session

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"lockstep.internal/services/watcher/delivery"
)

const (
	// unreadMembers is about what the state service stores in 40 ms.
	unreadMembers = 500
	// reportTimeout is longer than any transaction of the state service should take.
	reportTimeout = 2 * time.Second
)

// pace is the [delivery.Pace] of all pipelines of a session: they publish to one stream. It is safe for concurrent use.
type pace struct {
	clock clock.Clock

	mu   sync.Mutex
	pace delivery.Pace
}

func newPace(c clock.Clock) *pace {
	return &pace{clock: c, pace: delivery.Pace{Unread: unreadMembers, ReportTimeout: reportTimeout}}
}

// allows reports whether a member may be published now. If not, it returns when to ask again if no report
// arrives.
func (p *pace) allows() (bool, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace.Allows(p.clock.Now())
}

func (p *pace) published() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.Published()
}

func (p *pace) settled(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.Settled(sequence)
}

func (p *pace) read(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.Read(sequence)
}
