package retry_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/retry"
)

func TestPausesGrowUpToMaxAndStartAgainAfterReset(t *testing.T) {
	t.Parallel()
	b := retry.Policy{Min: 100 * time.Millisecond, Max: time.Second}.Backoff()
	first := b.Next()
	require.GreaterOrEqual(t, first, 50*time.Millisecond)
	require.LessOrEqual(t, first, 100*time.Millisecond)
	for range 10 {
		require.LessOrEqual(t, b.Next(), time.Second)
	}
	require.GreaterOrEqual(t, b.Next(), 500*time.Millisecond)
	b.Reset()
	require.LessOrEqual(t, b.Next(), 100*time.Millisecond)
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, retry.Policy{Min: time.Hour, Max: time.Hour}.Backoff().Wait(ctx), context.Canceled)
}

func TestOrDefaultReplacesAnEmptyPolicy(t *testing.T) {
	t.Parallel()
	fallback := retry.Policy{Min: 1, Max: 2}
	require.Equal(t, fallback, retry.Policy{}.OrDefault(fallback))
	require.Equal(t, retry.Policy{Min: 3}, retry.Policy{Min: 3}.OrDefault(fallback))
}

func TestDoRetriesUntilSuccess(t *testing.T) {
	t.Parallel()
	attempts, failures := 0, 0
	err := retry.Policy{Min: 1, Max: 1}.Do(t.Context(), func() error {
		if attempts++; attempts < 3 {
			return errors.New("not yet")
		}
		return nil
	}, func(error, time.Duration) { failures++ })
	require.NoError(t, err)
	require.Equal(t, 3, attempts)
	require.Equal(t, 2, failures)
}

func TestDoEndsWithAPermanentErrorAndWithTheContext(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	policy := retry.Policy{Min: time.Hour, Max: time.Hour}
	require.Equal(t, broken, policy.Do(t.Context(), func() error { return retry.Permanent(broken) }, nil))
	ctx, cancel := context.WithCancel(t.Context())
	err := policy.Do(ctx, func() error { return broken }, func(error, time.Duration) { cancel() })
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, err, context.Canceled)
}

func TestFailureAfterTheContextEndedIsNotReportedAsRetried(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	ctx, cancel := context.WithCancel(t.Context())
	err := retry.Policy{Min: 1, Max: 1}.Do(ctx, func() error {
		cancel()
		return broken
	}, func(error, time.Duration) { t.Error("failed was called without a pause to follow") })
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDelayDoublesWithEachFailureUpToMax(t *testing.T) {
	t.Parallel()
	policy := retry.Policy{Min: time.Second, Max: 5 * time.Second}
	for failures, longest := range map[int]time.Duration{
		1:   time.Second,
		2:   2 * time.Second,
		3:   4 * time.Second,
		100: 5 * time.Second,
	} {
		delay := policy.Delay(failures)
		require.LessOrEqual(t, delay, longest)
		require.GreaterOrEqual(t, delay, longest/2)
	}
}

func TestOutageIsOneWarningPerMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failures retry.FailureLog
		levels := map[slog.Level]int{}
		for range 121 {
			levels[failures.Level()]++
			time.Sleep(time.Second)
		}
		require.Equal(t, map[slog.Level]int{slog.LevelWarn: 3, slog.LevelDebug: 118}, levels)
		failures.Reset()
		require.Equal(t, slog.LevelWarn, failures.Level())
	})
}
