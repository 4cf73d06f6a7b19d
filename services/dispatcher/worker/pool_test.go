package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/dispatcher/worker"
)

func TestSlowAttemptsMoveToSpareSlotsWhileThereAreAny(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := worker.NewPool(1, time.Second)
		end := make(chan struct{})
		acquired := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			return pool.Acquire(ctx) == nil
		}
		for range 9 {
			start := time.Now()
			require.True(t, acquired())
			require.LessOrEqual(t, time.Since(start), time.Second, "the slow attempt before has moved")
			go pool.Run(func() { <-end })
		}
		require.False(t, acquired(), "one worker and eight spare slots are in use")
		close(end)
		synctest.Wait()
		require.True(t, acquired(), "all slots are released")
		pool.Run(func() {})
	})
}
