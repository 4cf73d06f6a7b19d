package api_test

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/ownership"
	store "lockstep.internal/services/deploys/postgres"
)

// claim stores claims of clusters, as the reader does.
func (b *fixture) claim(claims ...ownership.Claim) {
	b.t.Helper()
	reporters := []ownership.Reporter{{AgentID: agent, ProjectID: 1, Since: 1}}
	require.NoError(b.t, pgx.BeginFunc(b.t.Context(), b.pool, func(tx pgx.Tx) error {
		return (&store.Store{}).Claim(b.t.Context(), tx, reporters, claims)
	}))
}

func TestClusterIsReleased(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.claim(ownership.Claim{
		ClusterUID: "cluster",
		Since:      1,
		ProjectID:  1,
		AgentID:    agent,
	}, ownership.Claim{ClusterUID: "other", Since: 2, ProjectID: 3, AgentID: otherAgent})
	b.save(store.Rows{Agents: []agents.Agent{{ID: agent, ClusterUID: "cluster"}}})
	b.put(b.rollout(agent))
	b.stream.set(func() { b.stream.at.Epoch, b.stream.at.Sequence = 1, 50 })
	api := b.as(admin)

	list, err := api.ListClusters(t.Context(), connect.NewRequest(&deploysv1.ListClustersRequest{}))
	require.NoError(t, err)
	require.Len(t, list.Msg.GetClusters(), 2)
	first := list.Msg.GetClusters()[0]
	require.EqualValues(t, 1, first.GetProjectId())
	require.Equal(t, []int64{agent}, first.GetAgentIds())
	require.EqualValues(t, 1, first.GetRunningRollouts())
	require.EqualValues(t, agent, first.GetClaims()[0].GetAgentId())
	require.False(t, list.Msg.GetStreamRestored())
	require.Len(t, list.Msg.GetReporters(), 1)

	released, err := api.ReleaseCluster(t.Context(), connect.NewRequest(&deploysv1.ReleaseClusterRequest{
		ClusterUid:  "cluster",
		ToProjectId: 2,
		Reason:      "it has moved",
	}))
	require.NoError(t, err)
	require.EqualValues(t, 1, released.Msg.GetFromProjectId())
	require.False(t, released.Msg.GetPending())
	c := released.Msg.GetCluster()
	require.EqualValues(t, 2, c.GetProjectId())
	require.Empty(t, c.GetAgentIds())
	require.Len(t, c.GetClaims(), 2)
	require.EqualValues(t, admin, c.GetClaims()[1].GetUserId(), "the administrator is stored")
	require.Equal(t, "it has moved", c.GetClaims()[1].GetReason())
	require.EqualValues(t, 51, c.GetClaims()[1].GetSinceSequence())

	b.stream.set(func() { b.stream.at.Epoch = 2 })
	list, err = api.ListClusters(t.Context(), connect.NewRequest(&deploysv1.ListClustersRequest{}))
	require.NoError(t, err)
	require.True(t, list.Msg.GetStreamRestored())
}

func TestInvalidReleasesAreRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.claim(ownership.Claim{
		ClusterUID: "cluster",
		Since:      1,
		ProjectID:  2,
		AgentID:    agent,
	}, ownership.Claim{ClusterUID: "free", Since: 2, UserID: admin})
	api := b.as(admin)
	release := func(r *deploysv1.ReleaseClusterRequest) error {
		_, err := api.ReleaseCluster(t.Context(), connect.NewRequest(r))
		return err
	}
	for want, c := range map[string]struct {
		request *deploysv1.ReleaseClusterRequest
		code    errcode.Code
	}{
		"cluster_uid is empty": {&deploysv1.ReleaseClusterRequest{}, errcode.InvalidArgument},
		"no agent has reported cluster \"none\"": {
			&deploysv1.ReleaseClusterRequest{ClusterUid: "none"}, errcode.NotFound,
		},
		"project 9 does not exist": {
			&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster", ToProjectId: 9}, errcode.NotFound,
		},
		"project -1 does not exist": {
			&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster", ToProjectId: -1}, errcode.NotFound,
		},
		"project 2 already owns cluster": {
			&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster", ToProjectId: 2}, errcode.FailedPrecondition,
		},
		"has no owner": {&deploysv1.ReleaseClusterRequest{ClusterUid: "free"}, errcode.FailedPrecondition},
		"reason has 501 bytes": {
			&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster", Reason: strings.Repeat("x", 501)}, errcode.InvalidArgument,
		},
		"cluster_uid has 5000 bytes, the limit is 4096": {
			&deploysv1.ReleaseClusterRequest{ClusterUid: strings.Repeat("x", 5000)}, errcode.InvalidArgument,
		},
	} {
		require.Contains(t, requireCode(t, c.code, release(c.request)).Message, want)
	}
	list, err := api.ListClusters(t.Context(), connect.NewRequest(&deploysv1.ListClustersRequest{}))
	require.NoError(t, err)
	for _, c := range list.Msg.GetClusters() {
		require.Len(t, c.GetClaims(), 1)
	}

	b.stream.set(func() { b.stream.fails = errors.New("no responders") })
	err = release(&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster"})
	require.Contains(t, requireCode(t, errcode.Unavailable, err).Message, "NATS did not confirm")
	b.stream.set(func() { b.stream.fails, b.stream.faster = nil, true })
	err = release(&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster"})
	require.Contains(t, requireCode(t, errcode.Conflict, err).Message, "another administrator released cluster")
	b.stream.set(func() { b.stream.faster = false })
	require.NoError(t, release(&deploysv1.ReleaseClusterRequest{ClusterUid: "free", ToProjectId: 3}))
	require.NoError(t, release(&deploysv1.ReleaseClusterRequest{ClusterUid: "cluster"}))
}

func TestReleaseIsPendingUntilReaderProcessesIt(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.claim(ownership.Claim{ClusterUID: "cluster", Since: 1, ProjectID: 1, AgentID: agent})
	b.stream.set(func() { b.stream.held = true })
	released, err := b.as(admin).ReleaseCluster(t.Context(), connect.NewRequest(&deploysv1.ReleaseClusterRequest{
		ClusterUid:  "cluster",
		ToProjectId: 2,
	}))
	require.NoError(t, err)
	require.True(t, released.Msg.GetPending())
	require.EqualValues(t, 1, released.Msg.GetCluster().GetProjectId())
}
