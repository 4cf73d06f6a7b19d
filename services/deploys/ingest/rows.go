package ingest

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

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

// refusedInterval is the minimum time between two log lines about refused rows of an agent.
const refusedInterval = time.Minute

// reportRefused counts the refused rows. It logs each agent once a minute.
func (p *Processor) reportRefused(ctx context.Context, refused map[int64]int, now time.Time) {
	maps.DeleteFunc(p.refusedAt, func(_ int64, at time.Time) bool { return now.Sub(at) >= refusedInterval })
	for _, agentID := range slices.Sorted(maps.Keys(refused)) {
		p.metrics.Refused(refused[agentID])
		if _, logged := p.refusedAt[agentID]; logged {
			continue
		}
		p.refusedAt[agentID] = now
		p.logger.WarnContext(ctx, "refused new rows of an agent: it has as many as it may have",
			slog.Int64(logkey.AgentID, agentID))
	}
}
