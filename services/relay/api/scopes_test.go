package api_test

import (
	"testing"

	"lockstep.internal/libs/access/accesstest"
	"lockstep.internal/services/relay/api"
)

func TestEveryMethodHasAScope(t *testing.T) {
	t.Parallel()
	accesstest.RequireScopes(t, "lockstep.relay.v1", api.Scopes())
}
