package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/workspace"
)

// IngestStores creates an [IngestStore] for each transaction, and reads orphans.
type IngestStores struct {
	Workspaces *Workspaces
	// MaxMembers limits the recorded members of one full resync. Defaults to 2,000,000.
	MaxMembers int
}

func (o *IngestStores) maxMembers() int {
	if o.MaxMembers == 0 {
		return maxMembers
	}
	return o.MaxMembers
}

// In returns the store within a transaction.
func (o *IngestStores) In(tx pgx.Tx) *IngestStore { return &IngestStore{IngestStores: o, tx: tx} }

// IngestStore implements ingest.Store within one transaction.
type IngestStore struct {
	*IngestStores

	tx pgx.Tx
}

var _ ingest.Store = (*IngestStore)(nil)

// SaveWorkspaces implements ingest.WorkspaceStore.
func (s *IngestStore) SaveWorkspaces(ctx context.Context, workspaces []workspace.Workspace) error {
	return s.Workspaces.Save(ctx, s.tx, workspaces...)
}

// InsertMessages implements ingest.Outbox.
func (s *IngestStore) InsertMessages(ctx context.Context, messages ...*nats.Msg) error {
	if err := outbox.Insert(ctx, s.tx, messages...); err != nil {
		return fmt.Errorf("insert %d messages: %w", len(messages), err)
	}
	return nil
}

// LockClusters implements ingest.ResyncRequestStore.
func (s *IngestStore) LockClusters(ctx context.Context, agentIDs []int64) (map[int64]*agent.Cluster, error) {
	locked, err := s.LockAgents(ctx, agentIDs, nil)
	return locked.Clusters, err
}

// Clusters implements ingest.ResyncRequestStore.
func (s *IngestStore) Clusters(ctx context.Context, agentIDs []int64) (map[int64]*agent.Cluster, error) {
	var batch pgx.Batch
	clusters := queueClusters(&batch, agentIDs, "")
	return clusters, send(ctx, s.tx, &batch, "read %d agents", len(agentIDs))
}

// LockAgents implements ingest.ObservedStore.
func (s *IngestStore) LockAgents(
	ctx context.Context, agentIDs []int64, workspaces []uuid.UUID,
) (ingest.LockedAgents, error) {
	var batch pgx.Batch
	locked := ingest.LockedAgents{
		Clusters:        queueClusters(&batch, agentIDs, "for no key update"),
		Ended:           queueEndedResyncs(&batch, agentIDs),
		WorkspaceAgents: queueWorkspaceAgents(&batch, workspaces),
	}
	err := send(ctx, s.tx, &batch, "lock %d agents and read the agents of %d workspaces", len(agentIDs), len(workspaces))
	if err != nil {
		return ingest.LockedAgents{}, err
	}
	return locked, nil
}

// queueClusters adds the statement that reads the agents, and locks them as lock says. The map is filled when the batch
// is sent.
func queueClusters(batch *pgx.Batch, agentIDs []int64, lock string) map[int64]*agent.Cluster {
	clusters := make(map[int64]*agent.Cluster, len(agentIDs))
	batch.Queue(`
		select id, coalesce(cluster_uid, ''), epoch, ticked_at, clock_offset_ms, last_seen_at, objects
		from agents where id = any($1) order by id `+lock, agentIDs).Query(func(rows pgx.Rows) error {
		var c agent.Cluster
		var ticked, seen *time.Time
		var offset int64
		scan := []any{&c.AgentID, &c.UID, &c.Epoch, &ticked, &offset, &seen, &c.Objects}
		_, err := pgx.ForEachRow(rows, scan, func() error {
			cluster := c
			cluster.TickedAt, cluster.LastSeenAt = fromNullable(ticked), fromNullable(seen)
			cluster.ClockOffset = time.Duration(offset) * time.Millisecond
			clusters[c.AgentID] = &cluster
			return nil
		})
		return err //nolint:wrapcheck // send wraps it
	})
	return clusters
}

// queueWorkspaceAgents adds the statement that reads the agents of workspaces. The map is filled when the batch is
// sent.
func queueWorkspaceAgents(batch *pgx.Batch, ids []uuid.UUID) map[uuid.UUID]int64 {
	agents := make(map[uuid.UUID]int64, len(ids))
	if len(ids) == 0 {
		return agents
	}
	batch.Queue(`select id, agent_id from workspaces where id = any($1)`, ids).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var agentID int64
		_, err := pgx.ForEachRow(rows, []any{&id, &agentID}, func() error { agents[id] = agentID; return nil })
		return err //nolint:wrapcheck // send wraps it
	})
	return agents
}

// WorkspaceAgents implements ingest.AppliedStore.
func (s *IngestStore) WorkspaceAgents(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]int64, error) {
	var batch pgx.Batch
	agents := queueWorkspaceAgents(&batch, ids)
	if batch.Len() == 0 {
		return agents, nil
	}
	if err := send(ctx, s.tx, &batch, "read the agents of %d workspaces", len(ids)); err != nil {
		return nil, err
	}
	return agents, nil
}

// SaveClusters implements ingest.ObservedStore.
func (s *IngestStore) SaveClusters(ctx context.Context, clusters map[int64]*agent.Cluster) error {
	n := len(clusters)
	ids, epochs, uids := make([]int64, 0, n), make([]int64, 0, n), make([]string, 0, n)
	ticked, seen := make([]*time.Time, 0, n), make([]*time.Time, 0, n)
	offsets := make([]int64, 0, n)
	for id, c := range clusters {
		ids, epochs, uids = append(ids, id), append(epochs, c.Epoch), append(uids, c.UID)
		ticked, seen = append(ticked, nullable(c.TickedAt)), append(seen, nullable(c.LastSeenAt))
		offsets = append(offsets, c.ClockOffset.Milliseconds())
	}
	var batch pgx.Batch
	if !s.Workspaces.NoNotify {
		batch.Queue(`
			select pg_notify('`+WorkspaceChannel+`', w.id::text) from workspaces w join agents a on a.id = w.agent_id
			where a.id = any($1) and a.last_seen_at is null and w.actual_state <> 'terminated'`, ids)
	}
	batch.Queue(`
		update agents a set cluster_uid = nullif(n.uid, ''), epoch = n.epoch, ticked_at = n.ticked,
			clock_offset_ms = n.clock_offset, last_seen_at = n.seen
		from unnest($1::bigint[], $2::text[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::timestamptz[])
			as n (id, uid, epoch, ticked, clock_offset, seen)
		where a.id = n.id`, ids, uids, epochs, ticked, offsets, seen)
	return send(ctx, s.tx, &batch, "store the clusters of %d agents", len(ids))
}

// CountObjects implements ingest.ObservedStore.
func (s *IngestStore) CountObjects(
	ctx context.Context, agentID int64, before time.Time,
) (objects, workspaces int64, err error) {
	err = s.tx.QueryRow(ctx, `
		select objects, (select count(*) from workspaces where agent_id = a.id and created_at < $2)
		from agents a where id = $1`, agentID, before).Scan(&objects, &workspaces)
	if err != nil {
		return 0, 0, fmt.Errorf("count the objects of agent %d: %w", agentID, err)
	}
	return objects, workspaces, nil
}

// DueWorkspaces implements ingest.ObservedStore.
func (s *IngestStore) DueWorkspaces(ctx context.Context, clocks map[int64]time.Time) ([]uuid.UUID, error) {
	agents, times := make([]int64, 0, len(clocks)), make([]time.Time, 0, len(clocks))
	for id, clock := range clocks {
		agents, times = append(agents, id), append(times, clock)
	}
	rows, err := s.tx.Query(ctx, `
		with configured as (
			update agents set considered_revision = configuration_revision
			where id = any($1) and considered_revision <> configuration_revision returning id
		)
		select w.id from unnest($1::bigint[], $2::timestamptz[]) as n (agent_id, ticked)
			join workspaces w on w.agent_id = n.agent_id and w.reconsider_at <= n.ticked
		union select w.id from configured c join workspaces w on w.agent_id = c.id and w.actual_state <> 'terminated'`,
		agents, times)
	if err != nil {
		return nil, fmt.Errorf("read due workspaces: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("read due workspaces: %w", err)
	}
	return ids, nil
}

// LockActiveAgents implements ingest.ResyncRequestStore.
func (s *IngestStore) LockActiveAgents(ctx context.Context) ([]int64, error) {
	rows, err := s.tx.Query(ctx, `select id from agents where revoked_at is null order by id for no key update`)
	if err != nil {
		return nil, fmt.Errorf("lock all agents: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("lock all agents: %w", err)
	}
	return ids, nil
}
