package agent

import "time"

// MaxClockLead is how far the time in an agent's event may be ahead of the time at which the stream stored the event.
// It is also the largest change of the agent's clock between two ticks that is no jump.
const MaxClockLead = time.Minute

// maxClockOffset bounds offsets, so that the difference of two is a duration.
const maxClockOffset = 100 * 365 * 24 * time.Hour

// EventTime returns the time of an agent's event: at, which is the agent's time, but at most MaxClockLead after stored.
// Both come from the stream, so a rebuild gets the same time.
func EventTime(at, stored time.Time) time.Time {
	if limit := stored.Add(MaxClockLead).UTC().Truncate(time.Millisecond); at.After(limit) {
		return limit
	}
	return at
}

// ClockOffset returns how far the agent's clock is ahead of the stream's, at most 100 years; negative if it is behind.
func ClockOffset(at, stored time.Time) time.Duration {
	return max(-maxClockOffset, min(maxClockOffset, at.Sub(stored)))
}

// Tick returns the cluster after a tick with the agent's time at, and whether the agent's clock has jumped since the
// tick before. The clock of the cluster never goes back.
func (c Cluster) Tick(at, stored time.Time) (Cluster, bool) {
	before := c.ClockOffset
	c.ClockOffset = ClockOffset(at, stored)
	if at = EventTime(at, stored); at.After(c.TickedAt) {
		c.TickedAt = at
	}
	return c, (c.ClockOffset - before).Abs() > MaxClockLead
}
