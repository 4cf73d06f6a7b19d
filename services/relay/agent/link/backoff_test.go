package link_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/link"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := link.Backoff{Base: time.Second, Max: 20 * time.Second}
	for _, c := range []struct {
		failures   int
		retryAfter time.Duration
		random     float64
		want       time.Duration
	}{
		{0, 0, 0, 0},
		{0, 0, 0.5, 500 * time.Millisecond},
		{0, 0, 1, time.Second},
		{1, 0, 1, 1600 * time.Millisecond},
		{2, 0, 1, 2560 * time.Millisecond},
		{6, 0, 1, 16777216 * time.Microsecond},
		{7, 0, 1, 20 * time.Second},
		{1000, 0, 0.5, 10 * time.Second},
		{1 << 40, 0, 1, 20 * time.Second},
		{0, 7 * time.Second, 0, 7 * time.Second},
		{0, 7 * time.Second, 1, 8 * time.Second},
		{1000, 7 * time.Second, 1, 27 * time.Second},
		{0, 24 * time.Hour, 0, 5 * time.Minute},
		{0, -time.Hour, 0, 0},
	} {
		require.Equal(t, c.want, b.Delay(c.failures, c.retryAfter, c.random), "%+v", c)
	}
}
