package api_test

import (
	"testing"

	"lockstep.internal/libs/access/accesstest"
	"lockstep.internal/services/deploys/api"
)

func TestEveryMethodHasAScope(t *testing.T) {
	t.Parallel()
	accesstest.RequireScopes(t, "lockstep.deploys.v1", api.Scopes())
}
