package leader_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/leader"
)

func TestConfigStopsALeaderBeforeItsLeaseExpires(t *testing.T) {
	t.Parallel()
	require.Empty(t, leader.DefaultConfig().Validate())
	for name, tc := range map[string]struct {
		change func(*leader.Config)
		want   string
	}{
		"no retries": {func(c *leader.Config) { c.RetryPeriod = 0 }, "retry_period"},
		"less than a retry with jitter": {
			func(c *leader.Config) { c.RenewDeadline = 2400 * time.Millisecond }, "renew_deadline",
		},
		"expires at the deadline": {func(c *leader.Config) { c.Duration = c.RenewDeadline }, "duration"},
		"below a second": {func(c *leader.Config) {
			*c = leader.Config{
				Duration:      900 * time.Millisecond,
				RenewDeadline: 500 * time.Millisecond,
				RetryPeriod:   time.Millisecond,
			}
		}, "duration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := leader.DefaultConfig()
			tc.change(&cfg)
			errs := cfg.Validate()
			require.Len(t, errs, 1)
			require.ErrorContains(t, errors.Join(errs...), tc.want)
		})
	}
}
