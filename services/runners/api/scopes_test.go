package api_test

import (
	"testing"

	"lockstep.internal/libs/access/accesstest"
	"lockstep.internal/services/runners/api"
)

func TestEveryMethodHasAScope(t *testing.T) {
	t.Parallel()
	accesstest.RequireScopes(t, "lockstep.runners.v1", api.Scopes())
}
