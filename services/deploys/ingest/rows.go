package ingest

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/observation"
)

func workloadRows(r *agents.Rows) *int64    { return &r.Workloads }
func environmentRows(r *agents.Rows) *int64 { return &r.Environments }
func memberRows(r *agents.Rows) *int64      { return &r.Members }
func clusterRows(r *agents.Rows) *int64     { return &r.Clusters }

// addRow counts a new row of an agent. It returns false if the agent has as many as it may have. Each kind of row is
// counted in stream order, so the result does not depend on the batches.
func (b *batch) addRow(agentID int64, row agents.Row) bool {
	added := b.agents.Add(agentID, row, b.limits)
	if !added {
		b.refused[agentID]++
	}
	return added
}

// moves reports whether a message moves its agent from a cluster to another one.
func moves(o *observation.Observation, clusterUID string) bool {
	return o.ResyncBegun != nil && clusterUID != "" && clusterUID != o.ClusterUID
}

// mayMove reports whether an agent may move to another cluster.
func (b *batch) mayMove(agentID int64) bool {
	return b.agents.Agent(agentID).Rows.Clusters < b.limits.Clusters
}

// reportRefused logs and counts the refused rows.
func (b *batch) reportRefused(ctx context.Context) {
	for _, agentID := range slices.Sorted(maps.Keys(b.refused)) {
		b.metrics.Refused(b.refused[agentID])
		b.logger.WarnContext(ctx, "refused new rows of an agent: it has as many as it may have",
			slog.Int64(logkey.AgentID, agentID), slog.Int(logkey.Count, b.refused[agentID]))
	}
}
