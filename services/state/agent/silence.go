package agent

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// StreamWatch is an uninterrupted time in which the service reached the stream of agents' reports, by the clock of the
// stream. In any other time agents may not have reached it either. The zero value is no time.
type StreamWatch struct{ since, until time.Time }

// Reached returns the watch after the stream was reached once more. It starts anew if the service did not look for
// longer than patience allows, because it or the machine stood still.
func (w StreamWatch) Reached(at time.Time, patience time.Duration) StreamWatch {
	if pause := at.Sub(w.until); pause < 0 || pause > patience/2 {
		return StreamWatch{since: at, until: at}
	}
	w.until = at
	return w
}

// Until returns the end of the watch.
func (w StreamWatch) Until() time.Time { return w.until }

// SilentBefore returns the time from which on an agent must have reported not to be silent. It returns the zero time,
// before which nobody reported, unless the watch is longer than patience.
func (w StreamWatch) SilentBefore(patience time.Duration) time.Time {
	if w.until.Sub(w.since) < patience {
		return time.Time{}
	}
	return w.until.Add(-patience)
}

// Silence is a time in which an agent's watcher reported nothing.
type Silence struct {
	AgentID int64
	// Since is when the stream stored the last report before it, and Until the first known one after it.
	Since, Until time.Time
}

// SilentEvent is the payload that reports its begin.
func (s Silence) SilentEvent() events.AgentSilent {
	return events.AgentSilent{AgentID: int(s.AgentID), SilentSince: s.Since}
}

// ReturnedEvent is the payload that reports its end.
func (s Silence) ReturnedEvent() events.AgentReturned {
	return events.AgentReturned{AgentID: int(s.AgentID), SilentSince: s.Since, ReturnedAt: s.Until}
}
