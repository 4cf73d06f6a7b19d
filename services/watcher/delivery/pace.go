package delivery

import "time"

// Pace limits how many members of full resyncs the reader of the stream has still to read, since it reads a change that
// is published after them later. The reader reports how far it has read. Without a report for ReportTimeout it is away:
// members are published without a limit until its next report. Pace is not safe for concurrent use.
type Pace struct {
	// Unread is the maximum number of messages in the stream that the reader has not read, and of members in
	// flight.
	Unread uint64
	// ReportTimeout is how long members wait for a report.
	ReportTimeout time.Duration

	stored   uint64 // sequence of the member that was stored last
	read     uint64 // sequence up to which the stream is read, as far as known
	inFlight uint64
	full     time.Time // since when nothing is allowed, zero for not
	away     bool
}

// Allows reports whether a member may be published now. If not, it returns when to ask again without a report.
func (p *Pace) Allows(now time.Time) (bool, time.Time) {
	if p.away || p.unread() < p.Unread {
		p.full = time.Time{}
		return true, time.Time{}
	}
	if p.full.IsZero() {
		p.full = now
	}
	if again := p.full.Add(p.ReportTimeout); now.Before(again) {
		return false, again
	}
	p.away, p.full = true, time.Time{}
	return true, time.Time{}
}

func (p *Pace) unread() uint64 {
	if p.stored < p.read {
		return p.inFlight
	}
	return p.stored - p.read + p.inFlight
}

// Published records that a member is in flight.
func (p *Pace) Published() { p.inFlight++ }

// Settled records that a member is no longer in flight, and its sequence if it is stored, else 0.
func (p *Pace) Settled(sequence uint64) {
	p.inFlight--
	if p.read == 0 && sequence > 0 {
		p.read = sequence - 1 // nothing is known of what the reader has read before
	}
	if sequence > 0 {
		p.stored = sequence
	}
}

// Read records a report of the reader. A report may arrive again, and the loss of a stream makes sequences start anew.
func (p *Pace) Read(sequence uint64) { p.read, p.full, p.away = sequence, time.Time{}, false }
