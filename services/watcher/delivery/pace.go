package delivery

import (
	"sync"
	"time"
)

// Pace limits the messages with members of full resyncs that the state service has not processed. It processes the
// stream in order, so a change waits behind the members published before it. It reports the sequence up to which it has
// processed the stream. If the limit is reached and no report arrives for ReportTimeout, members are published without
// a limit until the next report. It is safe for concurrent use.
type Pace struct {
	// ReportTimeout is how long members wait for a report.
	ReportTimeout time.Duration

	mu           sync.Mutex
	stored       uint64 // sequence of the message with members that was stored last
	read         uint64 // sequence up to which the stream is processed, as far as known
	inFlight     uint64
	limitedSince time.Time // when the limit was reached, zero if it is not
	unlimited    bool      // no report arrived for ReportTimeout
}

// Allows reports whether a message with members may be published now. If not, it returns when to ask again if no report
// arrives. maxUnread limits the sum of two numbers: the messages up to the last stored one with members that are not
// processed, of all agents, and those with members in flight.
func (p *Pace) Allows(now time.Time, maxUnread uint64) (bool, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unlimited || p.unread() < maxUnread {
		p.limitedSince = time.Time{}
		return true, time.Time{}
	}
	if p.limitedSince.IsZero() {
		p.limitedSince = now
	}
	if again := p.limitedSince.Add(p.ReportTimeout); now.Before(again) {
		return false, again
	}
	p.unlimited, p.limitedSince = true, time.Time{}
	return true, time.Time{}
}

func (p *Pace) unread() uint64 {
	if p.stored < p.read {
		return p.inFlight
	}
	return p.stored - p.read + p.inFlight
}

// Published records that a message with members is in flight.
func (p *Pace) Published() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight++
}

// Settled records that a message with members is no longer in flight, and its sequence if it is stored, else 0.
func (p *Pace) Settled(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if p.read == 0 && sequence > 0 {
		p.read = sequence - 1 // before the first report: assume that everything before it is processed
	}
	if sequence > 0 {
		p.stored = sequence
	}
}

// Read records a report. Its sequence may be lower than the last: reports are redelivered, and a recreated stream
// starts at 1.
func (p *Pace) Read(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read, p.limitedSince, p.unlimited = sequence, time.Time{}, false
}
