package state_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/tools/testkit/bodyflood"
	"lockstep.internal/tools/testkit/unreadflood"
)

// No other test runs meanwhile: the heap is measured.
func TestMemoryIsBoundedBeforeAuthentication(t *testing.T) {
	b := newFixture(t)
	b.start(t)
	honest := func() { call(t, b.as(t, b.admin).directory.WhoAmI, &statev1.WhoAmIRequest{}) }
	bodyflood.RequireRefused(t, b.url+statev1connect.DirectoryServiceCreateUserProcedure, honest)

	grown := unreadflood.Flood(t, strings.TrimPrefix(b.url, "http://"), "/", 15, 100)
	honest()
	require.Less(t, grown, int64(unreadflood.MaxGrowth))
}
