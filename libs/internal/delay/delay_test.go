package delay_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/internal/delay"
)

func TestPausesGrowUpToTheMaximumAndStartAgain(t *testing.T) {
	t.Parallel()
	d := delay.New(delay.Range{Min: 100 * time.Millisecond, Max: time.Second})
	first := d.Next()
	require.GreaterOrEqual(t, first, 50*time.Millisecond)
	require.LessOrEqual(t, first, 150*time.Millisecond)
	for range 10 {
		require.LessOrEqual(t, d.Next(), time.Second)
	}
	require.Greater(t, d.Next(), 400*time.Millisecond)
	d.Reset()
	require.LessOrEqual(t, d.Next(), 150*time.Millisecond)
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := delay.New(delay.Range{Min: time.Hour, Max: time.Hour}).Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, delay.Range{Min: 1, Max: 2}, delay.Range{}.Or(delay.Range{Min: 1, Max: 2}))
}
