package repair_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/repair"
)

func TestOnlyLastingOrPermanentFailuresArePublished(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason  failure.Reason
		applied bool
		attempt int
		want    bool
	}{
		"temporary":              {failure.Unreachable, true, 1, false},
		"temporary, attempt 5":   {failure.Unreachable, true, 5, false},
		"temporary, attempt 6":   {failure.Unreachable, true, 6, true},
		"temporary, not applied": {failure.Unreachable, false, 1, true},
		"permanent":              {failure.Forbidden, true, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, repair.ShouldPublish(failure.New(tc.reason, nil, "no"), tc.applied, tc.attempt))
		})
	}
}
