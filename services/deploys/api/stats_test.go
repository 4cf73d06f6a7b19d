package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/schemas/gen/events"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/history"
)

func TestStatsCoverTheRequestedPeriod(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	day := func(n int) func(*history.Rollout) {
		return func(r *history.Rollout) { r.StartedAt = start().Add(time.Duration(n) * 24 * time.Hour) }
	}
	done := func(ms int64) func(*history.Rollout) {
		return func(r *history.Rollout) { r.State, r.DurationMs = new(history.Completed), new(ms) }
	}
	rolledBack := func(r *history.Rollout) { r.Change = string(events.ChangeRolledBack) }
	b.put(
		b.rollout(agent, day(0), done(1000)), b.rollout(agent, day(1), done(2000)),
		b.rollout(agent, day(2), done(3000), rolledBack), b.rollout(agent, day(3)),
		b.rollout(agent, day(40), done(9000)), b.rollout(otherAgent, day(1), done(500)),
	)
	filter := &deploysv1.RolloutFilter{
		Since: timestamppb.New(start()), Until: timestamppb.New(start().Add(4 * 24 * time.Hour)),
	}
	got, err := b.as(reader).GetStats(t.Context(),
		connect.NewRequest(&deploysv1.GetStatsRequest{Workloads: 2, Filter: filter}))
	require.NoError(t, err)
	total := got.Msg.GetTotal()
	require.EqualValues(t, 4, total.GetRollouts())
	require.EqualValues(t, 1, total.GetRunning())
	require.EqualValues(t, 3, total.GetCompleted())
	require.EqualValues(t, 1, total.GetRolledBack())
	require.EqualValues(t, 2, total.GetChanges(), "neither the rollback nor the running rollout")
	require.Zero(t, total.GetFailedChanges())
	require.Equal(t, 2*time.Second, total.GetDurationP50().AsDuration())
	require.Equal(t, 2900*time.Millisecond, total.GetDurationP95().AsDuration())
	require.InDelta(t, 0.5, total.GetDeploysPerDay(), 1e-9)
	require.InDelta(t, 0.25, total.GetRollbackRate(), 1e-9)
	require.Nil(t, total.GetWorkload())
	require.Len(t, got.Msg.GetWorkloads(), 2, "no more than requested")
	require.Equal(t, "shop", got.Msg.GetWorkloads()[0].GetWorkload().GetNamespace())
	require.Equal(t, start(), got.Msg.GetSince().AsTime())

	nothing, err := b.as(stranger).GetStats(t.Context(), connect.NewRequest(&deploysv1.GetStatsRequest{}))
	require.NoError(t, err)
	require.Zero(t, nothing.Msg.GetTotal().GetRollouts())
	require.Nil(t, nothing.Msg.GetTotal().GetDurationP50())
	require.Equal(t, 30*24*time.Hour, nothing.Msg.GetUntil().AsTime().Sub(nothing.Msg.GetSince().AsTime()))
}
