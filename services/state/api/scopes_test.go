package api_test

import (
	"testing"

	"lockstep.internal/libs/access/accesstest"
	"lockstep.internal/services/state/api"
)

func TestEveryMethodHasAScope(t *testing.T) {
	t.Parallel()
	accesstest.RequireScopes(t, "lockstep.state.v1", api.Scopes())
}
