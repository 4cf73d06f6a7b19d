package state_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestCallWithoutDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	database := pgtest.Server(t)
	b.cfg.Database.URL = config.URL(database.URL())
	b.start(t)
	admin := b.as(t, b.admin)
	list := func() error {
		_, err := admin.directory.ListUsers(t.Context(), connect.NewRequest(&statev1.ListUsersRequest{}))
		return err
	}
	require.NoError(t, list())
	database.Kill()
	for range 3 { // connections that were open, and new ones
		err := list()
		require.True(t, fault.Is(err, errcode.Unavailable), "%v", err)
	}
	require.NoError(t, database.Restart(t.Context()))
	require.Eventually(t, func() bool { return list() == nil }, time.Minute, 10*time.Millisecond)
}
