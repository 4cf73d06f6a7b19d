package sink_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/egress"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/sinktest"
)

func TestLimiterEnforcesAllLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window = time.Minute
		l := sink.NewLimiter(sink.Limit{
			Count:  20,
			Window: window,
			Burst:  100,
		}).Within(sink.Limit{Count: 30, Window: 2 * window})
		server := sinktest.RateLimiter{Windows: []sinktest.Window{
			{Count: 20, Length: window}, {Count: 30, Length: 2 * window},
		}}
		for range 500 {
			require.NoError(t, l.Wait(t.Context()))
			server.Allow()
		}
		rejected, _ := server.Refused()
		require.Zero(t, rejected)
	})
}

func TestPauseBlocksAllRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pause = 200 * time.Millisecond
		var limiters sink.Limiters
		a, b := limiters.For("x", sink.Limit{Count: 100, Window: time.Second, Burst: 50}), limiters.For("x").Within()
		require.NotSame(t, a, limiters.For("y"))
		start := time.Now()
		b.Pause(pause)
		b.Pause(time.Millisecond) // must not shorten the pause
		require.Equal(t, pause, a.Paused())
		require.NoError(t, a.Await(t.Context()))
		require.NoError(t, a.Wait(t.Context()))
		require.Equal(t, pause, time.Since(start))

		a.Pause(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Wait(ctx), context.Canceled)
		require.ErrorIs(t, b.Await(ctx), context.Canceled)
	})
}

func TestAwaitDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := sink.NewLimiter(sink.Limit{Count: 1, Window: time.Hour})
		for range 10 {
			require.NoError(t, l.Await(t.Context()))
		}
		require.NoError(t, l.Wait(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Error(t, l.Await(ctx))
	})
}

func TestRetryAfterIsParsedInBothForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"7":                             7 * time.Second,
		"0":                             0,
		"99999999":                      time.Hour,
		"Fri, 01 May 2026 10:00:30 GMT": 30 * time.Second,
		"Fri, 01 May 2026 09:00:30 GMT": 0,
	} {
		got, ok := egress.ParseRetryAfter(http.Header{"Retry-After": {text}}, now)
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "soon", "-1"} {
		_, ok := egress.ParseRetryAfter(http.Header{"Retry-After": {text}}, now)
		require.False(t, ok, text)
	}
}
