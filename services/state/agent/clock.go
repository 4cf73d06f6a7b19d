package agent

import (
	"time"

	"lockstep.internal/libs/event"
)

// maxClockOffset bounds offsets, so that the difference of two is a duration.
const maxClockOffset = 100 * 365 * 24 * time.Hour

// ClockOffset returns how far the agent's clock is ahead of the stream's, at most 100 years; negative if it is behind.
func ClockOffset(at, stored time.Time) time.Duration {
	return max(-maxClockOffset, min(maxClockOffset, at.Sub(stored)))
}

// Tick returns the cluster after a tick with the agent's time at, and whether the agent's clock has jumped since the
// tick before: by more than [event.MaxLead]. The clock of the cluster never goes back.
func (c Cluster) Tick(at, stored time.Time) (Cluster, bool) {
	before := c.ClockOffset
	c.ClockOffset = ClockOffset(at, stored)
	if at = event.AgentTime(at, stored); at.After(c.TickedAt) {
		c.TickedAt = at
	}
	return c, (c.ClockOffset - before).Abs() > event.MaxLead
}
