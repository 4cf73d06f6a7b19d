package delivery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/watcher/delivery"
)

// allowed publishes members while the pace allows it, and returns how many.
func allowed(p *delivery.Pace, now time.Time, maxUnread uint64) int {
	n := 0
	for ; n < 1000; n++ {
		if ok, _ := p.Allows(now, maxUnread); !ok {
			break
		}
		p.Published()
	}
	return n
}

func TestMembersWaitForTheStateService(t *testing.T) {
	t.Parallel()
	now := epoch()
	p := &delivery.Pace{ReportTimeout: time.Second}
	require.Equal(t, 3, allowed(p, now, 3), "as many as the limit are in flight")
	for sequence := range uint64(3) {
		p.Settled(100 + sequence)
	}
	require.Zero(t, allowed(p, now, 3), "stored and not processed")
	p.Read(101)
	require.Equal(t, 2, allowed(p, now, 3))
	p.Settled(0)
	require.Equal(t, 1, allowed(p, now, 3), "a failed member is not in the stream")
	p.Settled(250)
	p.Settled(251)
	require.Zero(t, allowed(p, now, 3), "messages of others between the members are not processed either")
	p.Read(251)
	require.Equal(t, 3, allowed(p, now, 3))
}

func TestMembersAreNotLimitedWithoutReports(t *testing.T) {
	t.Parallel()
	now := epoch()
	p := &delivery.Pace{ReportTimeout: time.Second}
	require.Equal(t, 2, allowed(p, now, 2))
	ok, again := p.Allows(now.Add(time.Second/2), 2)
	require.False(t, ok)
	require.Equal(t, now.Add(time.Second), again)
	require.Equal(t, 1000, allowed(p, again, 2), "no report arrived in time")
	for sequence := range uint64(1002) {
		p.Settled(1 + sequence)
	}
	p.Read(900)
	require.Zero(t, allowed(p, again, 2), "a report limits members again: 102 are not processed")
	p.Read(1002)
	require.Equal(t, 2, allowed(p, again, 2))
}

func TestReportsOfAnotherTimeDelayAtMostOneReport(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]uint64{
		"an hour ago":                     5,
		"of a stream that was lost since": 5_000_000,
	} {
		p := &delivery.Pace{ReportTimeout: time.Second}
		p.Read(stale)
		require.Equal(t, 2, allowed(p, epoch(), 2), name)
		p.Settled(1001)
		p.Settled(1002)
		p.Read(1002)
		require.Equal(t, 2, allowed(p, epoch(), 2), name)
	}
}
