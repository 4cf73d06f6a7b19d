package event

import "time"

// MaxLead is how far the time in an agent's event may be ahead of the time at which the stream stored the event.
const MaxLead = time.Minute

// AgentTime returns the time of an agent's event: at, which is the agent's time, but at most [MaxLead] after stored. So
// no clock of an agent can move one of the control plane. Both come from the stream, so a rebuild gets the same time.
func AgentTime(at, stored time.Time) time.Time {
	if limit := stored.Add(MaxLead).UTC().Truncate(time.Millisecond); at.After(limit) {
		return limit
	}
	return at
}
