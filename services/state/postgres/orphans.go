package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

const orphanColumns = `o.agent_id, o.uid, o.workspace, o.namespace, o.name, o.seen_at, o.desired_revision,
	coalesce(o.user_id, 0), o.message, o.ended_at`

func scanOrphan(row pgx.CollectableRow) (orphan.Orphan, error) {
	var o orphan.Orphan
	var ended *time.Time
	err := row.Scan(&o.AgentID, &o.UID, &o.Label, &o.Namespace, &o.Name, &o.SeenAt, &o.DesiredRevision, &o.UserID,
		&o.Message, &ended)
	o.SeenAt, o.EndedAt = o.SeenAt.UTC(), fromNullable(ended).UTC()
	return o, err //nolint:wrapcheck // the caller wraps it
}

// InsertOrphans implements ingest.OrphanStore.
func (s *IngestStore) InsertOrphans(
	ctx context.Context, orphans []ingest.FoundOrphan,
) ([]ingest.FoundOrphan, error) {
	var inserted []ingest.FoundOrphan
	for _, o := range orphans {
		var known bool
		err := s.tx.QueryRow(ctx, `
			insert into orphans as o (agent_id, uid, workspace, namespace, name, seen_at) values ($1, $2, $3, $4, $5, $6)
			on conflict (agent_id, uid) do update set workspace = excluded.workspace where o.desired_revision = 0
			returning xmax <> 0`,
			o.AgentID, o.UID, o.Label, o.Namespace, o.Name, o.SeenAt).Scan(&known)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // it is being deleted
		}
		if err != nil {
			return nil, fmt.Errorf("insert orphan %s: %w", o, err)
		}
		if !known {
			inserted = append(inserted, o)
		}
	}
	return inserted, nil
}

// DeleteOrphans implements ingest.OrphanStore.
func (s *IngestStore) DeleteOrphans(ctx context.Context, deployments []ingest.ObjectChange) error {
	if len(deployments) == 0 {
		return nil
	}
	var agents []int64
	var namespaces, names, uids []string
	for i := range deployments {
		c := &deployments[i]
		agents, namespaces = append(agents, c.Key.AgentID), append(namespaces, c.Key.Namespace)
		names, uids = append(names, c.Key.Name), append(uids, c.UIDBefore)
	}
	_, err := s.tx.Exec(ctx, `
		delete from orphans o
			using unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) as n (agent_id, namespace, name, uid)
		where (o.agent_id, o.namespace, o.name, o.uid) = (n.agent_id, n.namespace, n.name, n.uid) and o.desired_revision = 0`,
		agents, namespaces, names, uids)
	if err != nil {
		return fmt.Errorf("delete %d orphans: %w", len(deployments), err)
	}
	return nil
}

// Orphans returns one page of the orphans of these agents, in the order of agent, namespace and name. Nil
// means every agent. Deleted orphans are left out.
func (o *IngestStores) Orphans(
	ctx context.Context, db Querier, agentIDs []int64, after orphan.Orphan, size int,
) ([]orphan.Orphan, error) {
	rows, err := db.Query(ctx, `
		select `+orphanColumns+` from orphans o
		where o.ended_at is null and ($1::bigint[] is null or o.agent_id = any($1))
			and (o.agent_id, o.namespace, o.name, o.uid) > ($2, $3, $4, $5)
		order by o.agent_id, o.namespace, o.name, o.uid limit $6`,
		agentIDs, after.AgentID, after.Namespace, after.Name, after.UID, size)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanOrphan)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", err)
	}
	return out, nil
}

// LockOrphan locks the agent and the orphan with a name, and returns the orphan. It returns the fault not_found if the
// orphan does not exist.
func (s *IngestStore) LockOrphan(ctx context.Context, agentID int64, namespace, name string) (orphan.Orphan, error) {
	wanted := orphan.Orphan{AgentID: agentID, Namespace: namespace, Name: name}
	if _, err := s.LockClusters(ctx, []int64{agentID}); err != nil {
		return wanted, err
	}
	rows, err := s.tx.Query(ctx, `
		select `+orphanColumns+` from orphans o
		where o.agent_id = $1 and o.namespace = $2 and o.name = $3 and o.ended_at is null
		order by o.seen_at desc limit 1 for update`, agentID, namespace, name)
	if err != nil {
		return wanted, fmt.Errorf("lock orphan %s: %w", wanted, err)
	}
	o, err := pgx.CollectExactlyOneRow(rows, scanOrphan)
	if errors.Is(err, pgx.ErrNoRows) {
		return wanted, fault.Wrap(err, errcode.NotFound, "orphan %s does not exist", wanted)
	}
	if err != nil {
		return wanted, fmt.Errorf("lock orphan %s: %w", wanted, err)
	}
	return o, nil
}

// LockDeletions implements ingest.AppliedStore.
func (s *IngestStore) LockDeletions(ctx context.Context, agentIDs []int64, labels []string) ([]orphan.Orphan, error) {
	rows, err := s.tx.Query(ctx, `
		select `+orphanColumns+` from orphans o
		where o.desired_revision > 0 and (o.agent_id, o.workspace) in (
			select n.agent_id, n.workspace from unnest($1::bigint[], $2::text[]) as n (agent_id, workspace))
		order by o.agent_id, o.uid for update`, agentIDs, labels)
	if err != nil {
		return nil, fmt.Errorf("lock orphans: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanOrphan)
	if err != nil {
		return nil, fmt.Errorf("lock orphans: %w", err)
	}
	return out, nil
}

// OrphanObservations returns the last observation of each orphan, in the order of orphans.
func (o *IngestStores) OrphanObservations(
	ctx context.Context,
	db Querier,
	orphans []orphan.Orphan,
) ([]orphan.Observation, error) {
	agents, namespaces, names := make([]int64, len(orphans)), make([]string, len(orphans)), make([]string, len(orphans))
	for i, o := range orphans {
		agents[i], namespaces[i], names[i] = o.AgentID, o.Namespace, o.Name
	}
	rows, err := db.Query(ctx, `
		select coalesce((
				select c->>'image' from observed_objects p, jsonb_array_elements(p.data::jsonb->'containers') as c
				where (p.agent_id, p.namespace) = (n.agent_id, n.namespace) and p.kind = 'pod' and not p.deleted
					and p.data::jsonb->>'deployment' = n.name and coalesce(c->>'init', 'false') = 'false' and c->>'image' <> ''
				order by p.name limit 1), ''),
			coalesce((d.data::jsonb->>'spec_replicas')::numeric, 0)::bigint,
			coalesce(d.data::jsonb->'object'->'annotations'->>$4, '')
		from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as n (agent_id, namespace, name, position)
			left join observed_objects d
				on (d.agent_id, d.kind, d.namespace, d.name) = (n.agent_id, 'deployment', n.namespace, n.name)
		order by n.position`, agents, namespaces, names, workspace.AnnotationDesiredRevision)
	if err != nil {
		return nil, fmt.Errorf("read the objects of %d orphans: %w", len(orphans), err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (orphan.Observation, error) {
		var observed orphan.Observation
		var revision string
		err := row.Scan(&observed.Image, &observed.Replicas, &revision)
		number, invalid := strconv.ParseInt(revision, 10, 64)
		if invalid == nil && number > 0 && number < workspace.MaxRevision {
			observed.Revision = number
		}
		return observed, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("read the objects of %d orphans: %w", len(orphans), err)
	}
	return out, nil
}

// RemoveOrphan removes a locked orphan that became a workspace.
func (s *IngestStore) RemoveOrphan(ctx context.Context, o orphan.Orphan) error {
	if _, err := s.tx.Exec(ctx, `delete from orphans where agent_id = $1 and uid = $2`, o.AgentID, o.UID); err != nil {
		return fmt.Errorf("remove orphan %s: %w", o, err)
	}
	return nil
}

// SaveOrphan implements ingest.AppliedStore.
func (s *IngestStore) SaveOrphan(ctx context.Context, o orphan.Orphan) error {
	_, err := s.tx.Exec(ctx, `
		update orphans set desired_revision = $3, user_id = nullif($4::bigint, 0), message = $5, ended_at = $6
		where agent_id = $1 and uid = $2`,
		o.AgentID, o.UID, o.DesiredRevision, o.UserID, o.Message, nullable(o.EndedAt))
	if err != nil {
		return fmt.Errorf("save orphan %s: %w", o, err)
	}
	return nil
}
