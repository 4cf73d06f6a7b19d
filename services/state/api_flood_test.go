package state_test

import (
	"testing"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/tools/testkit/bodyflood"
)

// No other test runs meanwhile: the heap is measured.
func TestMemoryIsBoundedBeforeAuthentication(t *testing.T) {
	b := newFixture(t)
	b.start(t)
	bodyflood.RequireRefused(t, b.url+statev1connect.DirectoryServiceCreateUserProcedure, func() {
		call(t, b.as(t, b.admin).directory.WhoAmI, &statev1.WhoAmIRequest{})
	})
}
