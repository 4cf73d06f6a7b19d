package event_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
)

func TestTimeOfAnAgentIsAtMostAMinuteAfterTheStorageTime(t *testing.T) {
	t.Parallel()
	stored := time.Date(2026, 3, 4, 5, 6, 7, 999, time.UTC)
	limit := time.Date(2026, 3, 4, 5, 7, 7, 0, time.UTC)
	for name, test := range map[string]struct{ at, want time.Time }{
		"the same time":  {stored, stored},
		"late":           {stored.Add(-time.Hour), stored.Add(-time.Hour)},
		"a little ahead": {stored.Add(30 * time.Second), stored.Add(30 * time.Second)},
		"a year ahead":   {stored.AddDate(1, 0, 0), limit},
		"year 9999":      {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), limit},
		"year 1":         {time.Time{}, time.Time{}},
	} {
		require.Equal(t, test.want, event.AgentTime(test.at, stored), name)
	}
}
