package repair_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/repair"
)

func TestRepairsStartOnRequestAndAtIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type startedRepair struct {
			cause string
			after time.Duration
		}
		start := time.Now()
		var got []startedRepair
		r := repair.NewScheduler(func(_ context.Context, cause string) {
			got = append(got, startedRepair{cause, time.Since(start)})
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(90 * time.Minute)
		r.Resync(t.Context(), events.ResyncRequested{Nonce: "n", Cause: events.ResyncRequestCauseOperator})
		time.Sleep(80 * time.Minute)
		r.Configure(t.Context(), events.AgentConfig{FullResyncIntervalMs: int(10 * time.Minute / time.Millisecond)})
		time.Sleep(25 * time.Minute)
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, []startedRepair{
			{"interval", time.Hour},
			{"operator", 90 * time.Minute},
			{"interval", 150 * time.Minute},
			{"interval", 170 * time.Minute},
			{"interval", 180 * time.Minute},
			{"interval", 190 * time.Minute},
		}, got)
	})
}
