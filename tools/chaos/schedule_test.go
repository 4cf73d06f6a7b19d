package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScheduleRepeatsWithItsSeed(t *testing.T) {
	t.Parallel()
	const duration = 12 * time.Minute
	targets := map[FaultKind][]string{
		FaultKill: {"state", "nats"}, FaultPause: {"nats", "state"}, FaultCut: {"state-nats", "watcher-kubernetes"},
	}
	reordered := map[FaultKind][]string{
		FaultKill: {"nats", "state"}, FaultPause: {"state", "nats"}, FaultCut: {"watcher-kubernetes", "state-nats"},
	}
	first := Schedule(7, duration, targets)
	require.Equal(t, first, Schedule(7, duration, reordered))
	require.NotEqual(t, first, Schedule(8, duration, targets))

	hit := map[Fault]int{}
	ended := time.Duration(0)
	for _, f := range first {
		require.GreaterOrEqual(t, f.At, ended, "one fault at a time")
		require.Positive(t, f.For)
		ended = f.At + f.For
		hit[Fault{Kind: f.Kind, Target: f.Target}]++
	}
	require.LessOrEqual(t, ended, duration)
	require.Len(t, hit, 6, "every target is hit")
	require.Empty(t, Schedule(7, duration, nil))
}
