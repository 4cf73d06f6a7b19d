package resync_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/resync"
)

func closed(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

func TestRequestsBeforeTheStartAreMerged(t *testing.T) {
	t.Parallel()
	type request struct {
		cause events.ResyncCause
		nonce string
	}
	for name, tc := range map[string]struct {
		first    events.ResyncCause
		requests []request
		cause    events.ResyncCause
		nonce    string
	}{
		"nothing else": {first: events.ResyncCauseStart, cause: events.ResyncCauseStart},
		"a request joins the start": {
			first:    events.ResyncCauseStart,
			requests: []request{{events.ResyncCauseRequested, "n"}},
			cause:    events.ResyncCauseStart,
			nonce:    "n",
		},
		"the latest nonce counts": {
			first:    events.ResyncCauseInterval,
			requests: []request{{events.ResyncCauseRequested, "n"}, {events.ResyncCauseRequested, "m"}},
			cause:    events.ResyncCauseRequested,
			nonce:    "m",
		},
		"a nonce survives other causes": {
			first:    events.ResyncCauseInterval,
			requests: []request{{events.ResyncCauseRequested, "n"}, {events.ResyncCauseConfigChanged, ""}},
			cause:    events.ResyncCauseRequested,
			nonce:    "n",
		},
		"the stronger cause counts": {
			first:    events.ResyncCauseInterval,
			requests: []request{{events.ResyncCauseConfigChanged, ""}},
			cause:    events.ResyncCauseConfigChanged,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := resync.NewPlan(tc.first, time.Hour)
			waiting := make([]<-chan struct{}, 0, len(tc.requests))
			for _, r := range tc.requests {
				waiting = append(waiting, plan.Request(r.cause, r.nonce))
			}
			next, _, ok := plan.Start(time.Unix(0, 0), "id")
			require.True(t, ok)
			require.Equal(t, resync.Resync{ID: "id", Cause: tc.cause, Nonce: tc.nonce}, next)
			for _, ended := range waiting {
				require.False(t, closed(ended))
			}
			plan.End()
			for _, ended := range waiting {
				require.True(t, closed(ended), "one resync answers all earlier requests")
			}
		})
	}
}

func TestOneResyncRunsAtATime(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	plan := resync.NewPlan(events.ResyncCauseStart, time.Hour)
	require.False(t, plan.Started())
	_, _, ok := plan.Start(now, "1")
	require.True(t, ok)
	require.True(t, plan.Started())

	first, second := plan.Request(events.ResyncCauseRequested, "n"), plan.Request(events.ResyncCauseConfigChanged, "")
	_, _, ok = plan.Start(now, "2")
	require.False(t, ok, "one is running")
	plan.End()
	require.False(t, closed(first), "a resync that started before the request does not answer it")

	next, _, ok := plan.Start(now, "2")
	require.True(t, ok)
	require.Equal(t, "n", next.Nonce)
	again := plan.Request(events.ResyncCauseRequested, "n")
	plan.End()
	require.True(t, closed(first) && closed(second))
	require.True(t, closed(again), "the running resync answers a second request with its nonce")
	_, wait, ok := plan.Start(now, "3")
	require.False(t, ok)
	require.Equal(t, time.Hour, wait)
}

func TestResyncStartsAfterTheInterval(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	plan := resync.NewPlan(events.ResyncCauseStart, time.Hour)
	_, _, ok := plan.Start(now, "1")
	require.True(t, ok)
	plan.End()
	_, wait, ok := plan.Start(now.Add(20*time.Minute), "2")
	require.False(t, ok)
	require.Equal(t, 40*time.Minute, wait)
	plan.SetInterval(10 * time.Minute)
	next, _, ok := plan.Start(now.Add(20*time.Minute), "2")
	require.True(t, ok, "a shorter interval applies at once")
	require.Equal(t, events.ResyncCauseInterval, next.Cause)
	require.Empty(t, next.Nonce)
}
