package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
)

func TestClockOfAnAgent(t *testing.T) {
	t.Parallel()
	stored := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	const year = 365 * 24 * time.Hour
	var c agent.Cluster
	for _, tick := range []struct {
		name          string
		after, offset time.Duration
		jumped        bool
		tickedAt      time.Duration
	}{
		{name: "first tick"},
		{name: "drifting", after: 15 * time.Second, offset: time.Second, tickedAt: 16 * time.Second},
		{
			name: "forwards", after: 30 * time.Second, offset: year, jumped: true,
			tickedAt: 90 * time.Second,
		},
		{name: "still ahead", after: 45 * time.Second, offset: year, tickedAt: 105 * time.Second},
		{name: "set right", after: 60 * time.Second, jumped: true, tickedAt: 105 * time.Second},
		{name: "backwards", after: 75 * time.Second, offset: -200 * year, jumped: true, tickedAt: 105 * time.Second},
		{name: "right again", after: 180 * time.Second, jumped: true, tickedAt: 180 * time.Second},
		{name: "from year 9999", after: 195 * time.Second, offset: 200 * year, jumped: true, tickedAt: 255 * time.Second},
	} {
		var jumped bool
		at := stored.Add(tick.after)
		c, jumped = c.Tick(at.Add(tick.offset), at)
		require.Equal(t, tick.jumped, jumped, tick.name)
		require.Equal(t, stored.Add(tick.tickedAt), c.TickedAt, tick.name)
	}
}
