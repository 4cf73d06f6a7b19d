package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// LockClusters locks the clusters of agents and returns those of agents that exist.
func (s *Observations) LockClusters(ctx context.Context, tx pgx.Tx, agentIDs []int64) (map[int64]*domain.Cluster, error) {
	var batch pgx.Batch
	clusters := queueClusters(&batch, agentIDs)
	if err := send(ctx, tx, &batch, "lock the clusters of %d agents", len(agentIDs)); err != nil {
		return nil, err
	}
	return clusters, nil
}

// Identify is LockClusters and then Owners, in one way to the database and back.
func (s *Observations) Identify(ctx context.Context, tx pgx.Tx, agentIDs []int64, workspaces []uuid.UUID) (map[int64]*domain.Cluster, map[uuid.UUID]int64, error) {
	var batch pgx.Batch
	clusters, owners := queueClusters(&batch, agentIDs), queueOwners(&batch, workspaces)
	if err := send(ctx, tx, &batch, "lock the clusters of %d agents and read whose %d workspaces are", len(agentIDs), len(workspaces)); err != nil {
		return nil, nil, err
	}
	return clusters, owners, nil
}

// queueClusters has the batch lock clusters; what it returns is filled when the batch is sent.
func queueClusters(batch *pgx.Batch, agentIDs []int64) map[int64]*domain.Cluster {
	clusters := make(map[int64]*domain.Cluster, len(agentIDs))
	batch.Queue(`
		select id, coalesce(cluster_uid, ''), epoch, ticked_at, last_seen_at from agents where id = any($1) order by id for no key update`, agentIDs).Query(func(rows pgx.Rows) error {
		var c domain.Cluster
		var ticked, seen *time.Time
		_, err := pgx.ForEachRow(rows, []any{&c.AgentID, &c.UID, &c.Epoch, &ticked, &seen}, func() error {
			cluster := c
			cluster.TickedAt, cluster.LastSeenAt = fromNullable(ticked), fromNullable(seen)
			clusters[c.AgentID] = &cluster
			return nil
		})
		return err //nolint:wrapcheck // who sends the batch says what it asked for
	})
	return clusters
}

// SaveClusters stores locked clusters.
func (s *Observations) SaveClusters(ctx context.Context, tx pgx.Tx, clusters map[int64]*domain.Cluster) error {
	n := len(clusters)
	ids, epochs, uids := make([]int64, 0, n), make([]int64, 0, n), make([]string, 0, n)
	ticked, seen := make([]*time.Time, 0, n), make([]*time.Time, 0, n)
	for id, c := range clusters {
		ids, epochs, uids = append(ids, id), append(epochs, c.Epoch), append(uids, c.UID)
		ticked, seen = append(ticked, nullable(c.TickedAt)), append(seen, nullable(c.LastSeenAt))
	}
	var batch pgx.Batch
	batch.Queue(`
		update agents a set cluster_uid = nullif(n.uid, ''), epoch = n.epoch, ticked_at = n.ticked, last_seen_at = n.seen
		from unnest($1::bigint[], $2::text[], $3::bigint[], $4::timestamptz[], $5::timestamptz[]) as n (id, uid, epoch, ticked, seen) where a.id = n.id`,
		ids, uids, epochs, ticked, seen)
	return send(ctx, tx, &batch, "store the clusters of %d agents", len(ids))
}

// Owners returns the agents of those workspaces that exist.
func (s *Observations) Owners(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]int64, error) {
	var batch pgx.Batch
	owners := queueOwners(&batch, ids)
	if batch.Len() == 0 {
		return owners, nil
	}
	if err := send(ctx, tx, &batch, "read the agents of %d workspaces", len(ids)); err != nil {
		return nil, err
	}
	return owners, nil
}

// queueOwners has the batch read the agents of workspaces, if there are any; what it returns is filled when the batch is sent.
func queueOwners(batch *pgx.Batch, ids []uuid.UUID) map[uuid.UUID]int64 {
	owners := make(map[uuid.UUID]int64, len(ids))
	if len(ids) == 0 {
		return owners
	}
	batch.Queue(`select id, agent_id from workspaces where id = any($1)`, ids).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var agentID int64
		_, err := pgx.ForEachRow(rows, []any{&id, &agentID}, func() error { owners[id] = agentID; return nil })
		return err //nolint:wrapcheck // who sends the batch says what it asked for
	})
	return owners
}

// Due returns the workspaces of ticked agents that are to be looked at by now: those whose time has come, and all of an agent that was configured since its last tick.
func (s *Observations) Due(ctx context.Context, tx pgx.Tx, ticked map[int64]time.Time) ([]uuid.UUID, error) {
	agents, clocks := make([]int64, 0, len(ticked)), make([]time.Time, 0, len(ticked))
	for id, clock := range ticked {
		agents, clocks = append(agents, id), append(clocks, clock)
	}
	rows, err := tx.Query(ctx, `
		with configured as (
			update agents set considered_revision = configuration_revision where id = any($1) and considered_revision <> configuration_revision returning id
		)
		select w.id from unnest($1::bigint[], $2::timestamptz[]) as n (agent_id, ticked) join workspaces w on w.agent_id = n.agent_id and w.reconsider_at <= n.ticked
		union select w.id from configured c join workspaces w on w.agent_id = c.id and w.actual_state <> 'terminated'`,
		agents, clocks)
	if err != nil {
		return nil, fmt.Errorf("read whose time has come: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("read whose time has come: %w", err)
	}
	return ids, nil
}

// AskResync asks the watcher of an agent, whose row is locked, for a full resync. The nonce carries what is stored now.
func (s *Observations) AskResync(ctx context.Context, tx pgx.Tx, cluster domain.Cluster, cause events.ResyncRequestCause, at time.Time) error {
	_, err := s.ask(ctx, tx, cluster, cause, at)
	return err
}

// RequestResync asks the watcher of an agent for a full resync on an operator's behalf, and returns the nonce that it will answer. Fault not_found.
func (s *Observations) RequestResync(ctx context.Context, tx pgx.Tx, agentID int64, at time.Time) (string, error) {
	clusters, err := s.LockClusters(ctx, tx, []int64{agentID})
	if err != nil {
		return "", err
	}
	cluster, there := clusters[agentID]
	if !there {
		return "", fault.New(errcode.NotFound, "agent %d does not exist", agentID)
	}
	return s.ask(ctx, tx, *cluster, events.ResyncRequestCauseOperator, at)
}

// ask returns the nonce.
func (s *Observations) ask(ctx context.Context, tx pgx.Tx, cluster domain.Cluster, cause events.ResyncRequestCause, at time.Time) (string, error) {
	highest, err := s.Highest(ctx, tx, cluster.AgentID, cluster.Epoch)
	if err != nil {
		return "", err
	}
	nonce, err := domain.NewNonce(highest)
	if err != nil {
		return "", fmt.Errorf("ask agent %d for a resync: %w", cluster.AgentID, err)
	}
	return nonce, s.tell(ctx, tx, event.Attributes{Type: events.TypeResyncRequested, Subject: fmt.Sprintf("agent/%d", cluster.AgentID), ID: nonce, Time: at},
		s.Cell.ControlResync(cluster.AgentID), events.ResyncRequested{Nonce: nonce, Cause: cause})
}

// AskEveryone asks the watcher of every agent that is not revoked.
func (s *Observations) AskEveryone(ctx context.Context, tx pgx.Tx, cause events.ResyncRequestCause, at time.Time) error {
	rows, err := tx.Query(ctx, `select id from agents where revoked_at is null order by id for no key update`)
	if err != nil {
		return fmt.Errorf("lock every agent: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("lock every agent: %w", err)
	}
	clusters, err := s.LockClusters(ctx, tx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.AskResync(ctx, tx, *clusters[id], cause, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *Observations) tell(ctx context.Context, tx pgx.Tx, a event.Attributes, subject string, data any) error {
	m, err := message(ctx, s.Cell, a, subject, data)
	if err != nil {
		return err
	}
	if err := outbox.Insert(ctx, tx, []*nats.Msg{m}...); err != nil {
		return fmt.Errorf("tell on %s: %w", subject, err)
	}
	return nil
}
