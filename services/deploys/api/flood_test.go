package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/tools/testkit/bodyflood"
)

// No other test runs meanwhile: the heap is measured.
func TestMemoryIsBoundedBeforeAuthentication(t *testing.T) {
	b := newFixture(t)
	bodyflood.RequireRefused(t, b.url+deploysv1connect.RolloutServiceListRolloutsProcedure, func() {
		_, err := b.as(reader).ListRollouts(t.Context(), connect.NewRequest(&deploysv1.ListRolloutsRequest{}))
		require.NoError(t, err)
	})
}
