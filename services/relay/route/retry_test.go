package route_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/route"
)

func TestRequestIsRetriedOnlyIfRepeatingItIsSafe(t *testing.T) {
	t.Parallel()
	const fail, elsewhere, anywhere = route.Fail, route.RetryElsewhere, route.RetryAnywhere
	for name, c := range map[string]struct {
		failure                            route.Failure
		replayable, notReplayable, hasBody route.Action
	}{
		"not accepted":      {route.NotAccepted, elsewhere, elsewhere, fail},
		"overloaded":        {route.Overloaded, elsewhere, elsewhere, fail},
		"connection lost":   {route.ConnectionLost, elsewhere, fail, fail},
		"closed while idle": {route.ClosedWhileIdle, anywhere, fail, fail},
		"final":             {route.Final, fail, fail, fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := func(r route.RetryConditions) route.Action { return route.AfterFailure(c.failure, r) }
			require.Equal(t, c.replayable, after(route.RetryConditions{Replayable: true}))
			require.Equal(t, c.notReplayable, after(route.RetryConditions{}))
			require.Equal(t, c.hasBody, after(route.RetryConditions{HasBody: true}))
			require.Equal(t, c.hasBody, after(route.RetryConditions{Replayable: true, HasBody: true}))
		})
	}
}
