package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
)

func TestAgentsAreJudgedOnlyByTheTimeInWhichTheStreamWasReached(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for name, c := range map[string]struct {
		reached []int // seconds after the start
		// before is the result of SilentBefore in seconds after the start, -1 for none.
		before int
	}{
		"never":                      {nil, -1},
		"once":                       {[]int{0}, -1},
		"not for long enough":        {[]int{0, 20, 40, 59}, -1},
		"for long enough":            {[]int{0, 20, 40, 60}, 0},
		"for longer":                 {[]int{0, 20, 40, 60, 85}, 25},
		"again after a pause":        {[]int{0, 20, 40, 60, 91, 120, 150}, -1},
		"for long after a pause":     {[]int{0, 20, 40, 60, 91, 120, 150, 151}, 91},
		"the machine was suspended":  {[]int{0, 20, 40, 60, 28860}, -1},
		"the clock was set back":     {[]int{0, 20, 40, 60, 50}, -1},
		"the clock went back, later": {[]int{0, 20, 40, 60, 50, 70, 90, 110}, 50},
	} {
		var w agent.StreamWatch
		for _, at := range c.reached {
			w = w.Reached(start.Add(time.Duration(at)*time.Second), patience)
		}
		want := time.Time{}
		if c.before >= 0 {
			want = start.Add(time.Duration(c.before) * time.Second)
		}
		require.Equal(t, want, w.SilentBefore(patience), name)
	}
}
