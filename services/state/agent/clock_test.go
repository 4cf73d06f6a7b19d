package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
)

func TestEventTimeIsAtMostAMinuteAfterTheStorageTime(t *testing.T) {
	t.Parallel()
	stored := time.Date(2026, 3, 4, 5, 6, 7, 999, time.UTC)
	limit := time.Date(2026, 3, 4, 5, 7, 7, 0, time.UTC)
	for name, test := range map[string]struct{ at, want time.Time }{
		"the same time":     {stored, stored},
		"late":              {stored.Add(-time.Hour), stored.Add(-time.Hour)},
		"a little ahead":    {stored.Add(30 * time.Second), stored.Add(30 * time.Second)},
		"a year ahead":      {stored.AddDate(1, 0, 0), limit},
		"ten thousand":      {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), limit},
		"before the common": {time.Time{}, time.Time{}},
	} {
		require.Equal(t, test.want, agent.EventTime(test.at, stored), name)
	}
}

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
