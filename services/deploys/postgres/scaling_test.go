package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/postgres"
)

func TestScalingIsSelectedByItsWorkload(t *testing.T) {
	t.Parallel()
	fact := &events.DeployFact{Workload: events.Workload{
		ClusterUID: "c", AgentID: 7, Namespace: "shop", Kind: "deployment", Name: "web",
		Labels: map[string]string{"app": "web"},
	}}
	for _, f := range []postgres.RolloutFilter{
		{},
		{Agents: []int64{6, 7}},
		{AgentID: 7, ClusterUID: "c", Namespace: "shop", Kind: "deployment", Name: "web"},
		{Labels: map[string]string{"app": "web"}},
	} {
		require.True(t, f.SelectsScaling(fact), "%+v", f)
	}
	for _, f := range []postgres.RolloutFilter{
		{Agents: []int64{}},
		{Agents: []int64{6}},
		{AgentID: 6},
		{ClusterUID: "d"},
		{Namespace: "other"},
		{Kind: "statefulset"},
		{Name: "db"},
		{Labels: map[string]string{"app": "db"}},
		{States: []string{"running"}},
		{Changes: []string{"updated"}},
		{Commit: "c"},
		{Group: "g"},
		{Stuck: true},
		{Since: time.Unix(1, 0)},
	} {
		require.False(t, f.SelectsScaling(fact), "%+v", f)
	}
}
