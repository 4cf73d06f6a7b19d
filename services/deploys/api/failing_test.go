package api_test

import (
	"errors"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

func TestStoreErrorIsNeverAnEmptyAnswer(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	_, err := b.pool.Exec(t.Context(), `drop table rollouts, facts, claims, reporters, workloads, agents`)
	require.NoError(t, err)
	calls := b.callAll(t, b.as(admin))
	for _, call := range []string{"ListRollouts", "GetStats", "ResendFact", "ListClusters", "ReleaseCluster"} {
		require.Equal(t, errcode.Internal, fault.CodeOf(calls[call]), call)
	}
}

func TestNothingFoundWhileTheReaderFailsIsAnError(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	api := b.as(admin)
	get := func() error {
		_, err := api.GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{Id: "r"}))
		return err
	}
	require.NoError(t, b.callAll(t, api)["ListRollouts"])
	requireCode(t, errcode.NotFound, get())

	b.stream.set(func() { b.stream.failing = errors.New(`column "user_id" does not exist`) })
	calls := b.callAll(t, api)
	calls["GetRollout"] = get()
	for _, call := range []string{"ListRollouts", "GetRollout", "GetStats", "ListClusters", "ReleaseCluster"} {
		requireCode(t, errcode.Unavailable, calls[call])
		require.NotContains(t, calls[call].Error(), "user_id")
	}

	b.put(b.rollout(agent))
	require.NoError(t, b.callAll(t, api)["ListRollouts"], "an older state is an answer")
}
