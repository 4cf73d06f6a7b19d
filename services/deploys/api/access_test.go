package api_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/publish"
)

func TestCallersSeeOnlyTheirProjects(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	readable, others := b.rollout(agent), b.rollout(otherAgent)
	b.put(readable, others)
	for name, c := range map[string]struct {
		user int64
		sees []string
	}{
		"an administrator":      {admin, []string{readable.ID, others.ID}},
		"a reader":              {reader, []string{readable.ID}},
		"a user without a role": {stranger, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := b.as(c.user)
			list, err := api.ListRollouts(t.Context(), connect.NewRequest(&deploysv1.ListRolloutsRequest{}))
			require.NoError(t, err)
			require.ElementsMatch(t, c.sees, ids(list.Msg.GetRollouts()))
			// No filter returns rollouts of the other agent.
			for _, filter := range []*deploysv1.RolloutFilter{
				{AgentId: otherAgent},
				{Name: others.Name},
				{Labels: others.Labels},
				{ClusterUid: "cluster", Namespace: "shop", Name: others.Name},
			} {
				list, err := api.ListRollouts(t.Context(), connect.NewRequest(&deploysv1.ListRolloutsRequest{Filter: filter}))
				require.NoError(t, err)
				require.Equal(t, c.user == admin, len(list.Msg.GetRollouts()) == 1, "%v", filter)
			}
			for _, r := range []struct{ id, name string }{{readable.ID, readable.Name}, {others.ID, others.Name}} {
				for _, request := range []*deploysv1.GetRolloutRequest{
					{Id: r.id}, {Workload: &deploysv1.Workload{Namespace: "shop", Kind: "deployment", Name: r.name}},
				} {
					got, err := api.GetRollout(t.Context(), connect.NewRequest(request))
					if slices.Contains(c.sees, r.id) {
						require.NoError(t, err)
						require.Equal(t, r.id, got.Msg.GetRollout().GetId())
						continue
					}
					requireCode(t, errcode.NotFound, err)
					_, unknown := api.GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{Id: r.id + "x"}))
					require.Equal(t, fault.CodeOf(unknown), fault.CodeOf(err), "same code as for an unknown rollout")
				}
			}
			stats, err := api.GetStats(t.Context(), connect.NewRequest(&deploysv1.GetStatsRequest{Filter: allTime()}))
			require.NoError(t, err)
			require.EqualValues(t, len(c.sees), stats.Msg.GetTotal().GetRollouts())
			require.Len(t, stats.Msg.GetWorkloads(), len(c.sees))
		})
	}
}

func TestInvalidTokensAreRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.put(b.rollout(agent))
	for name, c := range map[string]struct {
		with string
		code errcode.Code
	}{
		"no authorization":        {"", errcode.Unauthenticated},
		"basic authentication":    {"Basic YTpi", errcode.Unauthenticated},
		"an empty token":          {"Bearer ", errcode.Unauthenticated},
		"a personal access token": {"Bearer lsp_x", errcode.Unauthenticated},
		"a blocked user":          {"Bearer " + b.token(blocked), errcode.PermissionDenied},
		"an unknown user":         {"Bearer " + b.token(99), errcode.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for call, err := range b.callAll(t, b.with(c.with)) {
				require.Equal(t, c.code, fault.CodeOf(err), "%s: %v", call, err)
			}
		})
	}
	require.Empty(t, b.sinks.calls)
}

func TestOperationsRequireAnAdministrator(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	r := b.rollout(agent)
	b.put(r)
	b.save(postgres.Rows{Facts: []postgres.Fact{
		{
			ID:             "fact",
			Workload:       uuidOf(t, r.Workload),
			Sequence:       1,
			Fact:           "started",
			RolloutID:      r.ID,
			OccurredAt:     start(),
			ObservedAt:     start(),
			Data:           "{}",
			StreamSequence: 5,
		},
		{
			ID:             "old",
			Workload:       uuidOf(t, r.Workload),
			Sequence:       2,
			Fact:           "completed",
			RolloutID:      r.ID,
			OccurredAt:     start(),
			ObservedAt:     start(),
			Data:           "{}",
			StreamSequence: publish.Dropped,
		},
	}})
	b.claim(ownership.Claim{ClusterUID: "cluster", Since: 1, ProjectID: 1, AgentID: agent})
	for _, user := range []int64{reader, stranger} {
		for call, err := range b.callAll(t, b.as(user)) {
			switch call {
			case "ListSinks", "BackfillSink", "ResendFact", "Rebuild", "ListClusters", "ReleaseCluster":
				require.Equal(t, errcode.PermissionDenied, fault.CodeOf(err), "%s: %v", call, err)
			default:
				require.NoError(t, err, call)
			}
		}
	}
	require.Empty(t, b.sinks.calls)
	for call, err := range b.callAll(t, b.as(admin)) {
		require.NoError(t, err, call)
	}
	require.ElementsMatch(t, []string{"backfill chat from 0", "resend 5 to chat", "rebuild"}, b.sinks.calls)
	api := b.as(admin)
	_, err := api.ResendFact(t.Context(), connect.NewRequest(&deploysv1.ResendFactRequest{Sink: "chat", FactId: "none"}))
	requireCode(t, errcode.NotFound, err)
	_, err = api.ResendFact(t.Context(), connect.NewRequest(&deploysv1.ResendFactRequest{Sink: "chat", FactId: "old"}))
	requireCode(t, errcode.FailedPrecondition, err)
}

// callAll calls each method once. It returns the errors by method.
func (b *fixture) callAll(t *testing.T, api clients) map[string]error {
	t.Helper()
	ctx := t.Context()
	out := map[string]error{}
	_, out["ListRollouts"] = api.ListRollouts(ctx, connect.NewRequest(&deploysv1.ListRolloutsRequest{}))
	_, out["GetStats"] = api.GetStats(ctx, connect.NewRequest(&deploysv1.GetStatsRequest{}))
	_, out["ListSinks"] = api.ListSinks(ctx, connect.NewRequest(&deploysv1.ListSinksRequest{}))
	_, out["BackfillSink"] = api.BackfillSink(ctx, connect.NewRequest(&deploysv1.BackfillSinkRequest{Name: "chat"}))
	_, out["ResendFact"] = api.ResendFact(ctx, connect.NewRequest(&deploysv1.ResendFactRequest{
		Sink:   "chat",
		FactId: "fact",
	}))
	_, out["ListClusters"] = api.ListClusters(ctx, connect.NewRequest(&deploysv1.ListClustersRequest{}))
	_, out["ReleaseCluster"] = api.ReleaseCluster(ctx, connect.NewRequest(&deploysv1.ReleaseClusterRequest{
		ClusterUid:  "cluster",
		ToProjectId: 2,
	}))
	rebuilding, err := api.Rebuild(ctx, connect.NewRequest(&deploysv1.RebuildRequest{}))
	require.NoError(t, err)
	for rebuilding.Receive() {
	}
	out["Rebuild"] = rebuilding.Err()
	require.NoError(t, rebuilding.Close())
	return out
}

func ids(rollouts []*deploysv1.Rollout) []string {
	var all []string
	for _, r := range rollouts {
		all = append(all, r.GetId())
	}
	return all
}
