package postgres

import (
	"context"
	"fmt"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
)

// keptResyncs is the number of full resyncs that are stored of an agent, more than it makes in 30 days by default. An
// older one that is read again, after a restore of the stream, counts as a new one.
const keptResyncs = 1000

// ResyncExists implements ingest.ResyncStore.
func (s *IngestStore) ResyncExists(ctx context.Context, agentID int64, resyncID string) (bool, error) {
	var known bool
	err := s.tx.QueryRow(ctx, `select exists (select from resyncs where agent_id = $1 and resync_id = $2)`,
		agentID, resyncID).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("read resync %s of agent %d: %w", resyncID, agentID, err)
	}
	return known, nil
}

// BeginResync implements ingest.ResyncStore.
func (s *IngestStore) BeginResync(ctx context.Context, c agent.Cluster, begun events.ObservedResyncBegun) error {
	_, err := s.tx.Exec(ctx, `
		insert into resyncs (agent_id, resync_id, cluster_uid, epoch, nonce, cause, list_versions, expected, begun_at)
		values ($1, $2, $3, $4, nullif($5, ''), $6, $7, $8, $9)`,
		c.AgentID, begun.ResyncID, begun.ClusterUID, c.Epoch, begun.Nonce, begun.Cause, agent.ListVersions(begun),
		begun.Count, begun.ObservedAt)
	if err != nil {
		return fmt.Errorf("begin resync %s of agent %d: %w", begun.ResyncID, c.AgentID, err)
	}
	_, err = s.tx.Exec(ctx, `
		update resyncs set outcome = 'incomplete' where agent_id = $1 and resync_id <> $2 and outcome = 'open'`,
		c.AgentID, begun.ResyncID)
	if err != nil {
		return fmt.Errorf("close the resyncs of agent %d before %s: %w", c.AgentID, begun.ResyncID, err)
	}
	_, err = s.tx.Exec(ctx, `
		delete from resyncs where agent_id = $1 and resync_id in (
			select resync_id from resyncs where agent_id = $1 and resync_id <> $2
			order by begun_at desc, resync_id desc offset $3)`, c.AgentID, begun.ResyncID, keptResyncs-1)
	if err != nil {
		return fmt.Errorf("delete the oldest resyncs of agent %d: %w", c.AgentID, err)
	}
	for _, table := range []string{"resync_members", "resyncs_to_judge"} {
		if _, err = s.tx.Exec(ctx, `delete from `+table+` where agent_id = $1`, c.AgentID); err != nil {
			return fmt.Errorf("delete the last full resync of agent %d from %s: %w", c.AgentID, table, err)
		}
	}
	return nil
}

// EndResync implements ingest.ResyncStore. It notifies EndedResyncsChannel.
func (s *IngestStore) EndResync(
	ctx context.Context, c agent.Cluster, ended events.ObservedResyncEnded,
) (*ingest.EndedResync, error) {
	rows, err := s.tx.Query(ctx, `
		with e as (
			insert into resyncs_to_judge as e (agent_id, resync_id, count, ended_at)
			select agent_id, resync_id, $5, $6 from resyncs
			where agent_id = $1 and resync_id = $2 and cluster_uid = $3 and epoch = $4 and outcome = 'open'
			on conflict (agent_id) do update
				set resync_id = excluded.resync_id, count = excluded.count, ended_at = excluded.ended_at
				where e.resync_id <> excluded.resync_id
			returning agent_id, resync_id, count, ended_at
		)
		select `+endedResyncColumns+` from e join resyncs r using (agent_id, resync_id)`,
		c.AgentID, ended.ResyncID, c.UID, c.Epoch, ended.Count, ended.ObservedAt)
	if err != nil {
		return nil, fmt.Errorf("end resync %s of agent %d: %w", ended.ResyncID, c.AgentID, err)
	}
	found, err := collectEndedResyncs(rows)
	if err != nil {
		return nil, fmt.Errorf("end resync %s of agent %d: %w", ended.ResyncID, c.AgentID, err)
	}
	if len(found) == 0 {
		return nil, nil //nolint:nilnil // not open, or a duplicate
	}
	if s.Workspaces.NoNotify {
		return &found[0], nil
	}
	if _, err := s.tx.Exec(ctx, `select pg_notify($1, '')`, EndedResyncsChannel); err != nil {
		return nil, fmt.Errorf("notify the end of resync %s of agent %d: %w", ended.ResyncID, c.AgentID, err)
	}
	return &found[0], nil
}
