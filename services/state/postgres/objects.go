package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/workspace"
)

// PutObjects implements ingest.ObservedStore. It also records the members of full resyncs.
func (s *IngestStore) PutObjects(ctx context.Context, objects []ingest.Object) ([]ingest.ObjectChange, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	stored, err := s.recordMembers(ctx, objects)
	if err != nil || len(stored) == len(objects) {
		return nil, err
	}
	var c objectColumns
	for i := range objects {
		if !stored[i] {
			c.add(&objects[i])
		}
	}
	rows, err := s.tx.Query(ctx, `
		with put as (
			insert into observed_objects as o (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version,
				deleted, workspace_id, data)
			select n.agent_id, n.kind, n.namespace, n.name, n.uid, n.cluster_uid, n.epoch, n.version::numeric,
				n.deleted, n.workspace_id, n.data
			from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
					$9::boolean[], $10::uuid[], $11::text[])
				as n (agent_id, kind, namespace, name, uid, cluster_uid, epoch, version, deleted, workspace_id, data)
			on conflict (agent_id, kind, namespace, name) do update set
				uid = excluded.uid, cluster_uid = excluded.cluster_uid, epoch = excluded.epoch,
				resource_version = excluded.resource_version, deleted = excluded.deleted, workspace_id = excluded.workspace_id,
				data = excluded.data
			where (excluded.epoch, excluded.resource_version, excluded.deleted) > (o.epoch, o.resource_version, o.deleted)
			returning agent_id, kind, namespace, name, uid, workspace_id, deleted
		)
		select put.agent_id, put.kind, put.namespace, put.name, put.uid, put.workspace_id, put.deleted,
			old.uid is not null, coalesce(old.uid, ''), old.workspace_id, coalesce(old.deleted, false)
		from put left join observed_objects old using (agent_id, kind, namespace, name)
		where put.workspace_id is not null or old.workspace_id is not null or put.kind = 'deployment'`,
		c.agents, c.kinds, c.namespaces, c.names, c.uids, c.clusters, c.epochs, c.versions, c.deleted, c.workspaces,
		c.data)
	if err != nil {
		return nil, fmt.Errorf("store %d objects: %w", len(objects), err)
	}
	changes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.ObjectChange, error) {
		var c ingest.ObjectChange
		var now, before *uuid.UUID
		err := row.Scan(&c.Key.AgentID, &c.Key.Kind, &c.Key.Namespace, &c.Key.Name, &c.UID, &now, &c.Deleted,
			&c.Existed, &c.UIDBefore, &before, &c.DeletedBefore)
		c.WorkspaceID, c.WorkspaceIDBefore = fromNullable(now), fromNullable(before)
		return c, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("store %d objects: %w", len(objects), err)
	}
	return changes, nil
}

// StoredObjects implements ingest.ObservedStore.
func (s *IngestStore) StoredObjects(
	ctx context.Context, keys []ingest.ObjectKey,
) (map[ingest.ObjectKey]bool, error) {
	agents := make([]int64, len(keys))
	for i, key := range keys {
		agents[i] = key.AgentID
	}
	kinds, namespaces, names := names(keys)
	rows, err := s.tx.Query(ctx, `
		select agent_id, kind, namespace, name from observed_objects
			join unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) as n (agent_id, kind, namespace, name)
				using (agent_id, kind, namespace, name)`, agents, kinds, namespaces, names)
	if err != nil {
		return nil, fmt.Errorf("look up %d objects: %w", len(keys), err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ingest.ObjectKey])
	if err != nil {
		return nil, fmt.Errorf("look up %d objects: %w", len(keys), err)
	}
	stored := make(map[ingest.ObjectKey]bool, len(found))
	for _, key := range found {
		stored[key] = true
	}
	return stored, nil
}

// maxMembers limits the recorded members of one full resync. More of them are ignored, so the resync is incomplete. A
// member counts again if it is reported again.
const maxMembers = 2 * agent.MaxObjects

// recordMembers records the members of open full resyncs, and returns the indexes of those whose version, or a later
// one, is stored. In a full resync these are nearly all objects, and reading is much cheaper than an upsert.
func (s *IngestStore) recordMembers(ctx context.Context, objects []ingest.Object) (map[int]bool, error) {
	type resync struct {
		agentID int64
		id      string
	}
	var all objectColumns
	var indexes []int
	members := map[resync]*objectColumns{}
	for i := range objects {
		o := &objects[i]
		if o.ResyncID == "" {
			continue
		}
		all.add(o)
		indexes = append(indexes, i)
		r := resync{o.AgentID, o.ResyncID}
		if members[r] == nil {
			members[r] = &objectColumns{}
		}
		members[r].add(o)
	}
	if len(indexes) == 0 {
		return nil, nil //nolint:nilnil // an empty set
	}
	var batch pgx.Batch
	for r, c := range members {
		batch.Queue(`
			with r as (
				update resyncs set recorded = recorded + $6
				where agent_id = $1 and resync_id = $2 and outcome = 'open' and recorded + $6 <= $7
					and not exists (select from resyncs_to_judge where agent_id = $1 and resync_id = $2)
				returning agent_id, resync_id
			)
			insert into resync_members (agent_id, resync_id, kinds, namespaces, names)
			select agent_id, resync_id, $3, $4, $5 from r`,
			r.agentID, r.id, c.kinds, c.namespaces, c.names, len(c.kinds), s.maxMembers())
	}
	stored := make(map[int]bool, len(indexes))
	batch.Queue(`
		select n.member
		from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::boolean[], $8::bigint[])
				as n (agent_id, kind, namespace, name, epoch, version, deleted, member)
			join observed_objects o using (agent_id, kind, namespace, name)
		where (n.epoch, n.version::numeric, n.deleted) <= (o.epoch, o.resource_version, o.deleted)`,
		all.agents, all.kinds, all.namespaces, all.names, all.epochs, all.versions, all.deleted, indexes,
	).Query(func(rows pgx.Rows) error {
		var member int
		_, err := pgx.ForEachRow(rows, []any{&member}, func() error { stored[member] = true; return nil })
		return err //nolint:wrapcheck // send wraps it
	})
	if err := send(ctx, s.tx, &batch, "record %d members of full resyncs", len(indexes)); err != nil {
		return nil, err
	}
	return stored, nil
}

// objectColumns are the columns of many objects, one array each.
type objectColumns struct {
	agents, epochs                                           []int64
	kinds, namespaces, names, uids, clusters, versions, data []string
	deleted                                                  []bool
	workspaces                                               []pgtype.UUID // pgx encodes a uuid.UUID by way of its text
}

func (c *objectColumns) add(o *ingest.Object) {
	c.agents, c.epochs = append(c.agents, o.AgentID), append(c.epochs, o.Epoch)
	c.kinds, c.namespaces, c.names = append(c.kinds, o.Kind), append(c.namespaces, o.Namespace), append(c.names, o.Name)
	c.uids, c.clusters = append(c.uids, o.UID), append(c.clusters, o.ClusterUID)
	c.versions = append(c.versions, o.ResourceVersion)
	c.data, c.deleted = append(c.data, o.Data), append(c.deleted, o.Deleted)
	c.workspaces = append(c.workspaces, pgtype.UUID{Bytes: o.WorkspaceID, Valid: o.WorkspaceID != uuid.Nil})
}

// HighestVersions implements ingest.ResyncRequestStore.
func (s *IngestStore) HighestVersions(ctx context.Context, c agent.Cluster) (agent.Versions, error) {
	rows, err := s.tx.Query(ctx, `
		select kind, max(resource_version)::text from observed_objects where agent_id = $1 and epoch = $2 group by kind`,
		c.AgentID, c.Epoch)
	if err != nil {
		return nil, fmt.Errorf("read the highest versions of agent %d: %w", c.AgentID, err)
	}
	versions := agent.Versions{}
	var kind, version string
	if _, err := pgx.ForEachRow(
		rows,
		[]any{&kind, &version},
		func() error { versions[kind] = version; return nil },
	); err != nil {
		return nil, fmt.Errorf("read the highest versions of agent %d: %w", c.AgentID, err)
	}
	return versions, nil
}

// LockWorkspaces implements ingest.WorkspaceStore. It reads the objects in the workspace's namespace; a
// Deployment must also have the workspace's name. Other objects with the workspace's label are ignored.
func (s *IngestStore) LockWorkspaces(
	ctx context.Context, ids []uuid.UUID,
) (map[uuid.UUID]workspace.Workspace, map[uuid.UUID]*workspace.Observation, error) {
	var batch pgx.Batch
	workspaces, observations := queueLock(&batch, ids), make(map[uuid.UUID]*workspace.Observation, len(ids))
	for _, id := range ids {
		observations[id] = &workspace.Observation{}
	}
	// This statement runs after the lock, so it reads the changes of the transaction that held the lock.
	batch.Queue(`
		select o.workspace_id, o.kind, o.deleted, case when o.deleted then '{}' else o.data end
		from observed_objects o
			join workspaces w on w.id = o.workspace_id and w.agent_id = o.agent_id and w.namespace = o.namespace
		where o.workspace_id = any($1)
			and (o.kind = 'deployment' and o.name = w.name or o.kind in ('pod', 'replicaset') and not o.deleted)
		order by o.kind, o.name`, ids).Query(func(rows pgx.Rows) error {
		var (
			id      uuid.UUID
			kind    string
			deleted bool
			data    []byte
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &kind, &deleted, &data}, func() error {
			if err := addObject(observations[id], kind, deleted, data); err != nil {
				return fmt.Errorf("%s of workspace %s: %w", kind, id, err)
			}
			return nil
		})
		return err //nolint:wrapcheck // send wraps it
	})
	queueClocks(&batch, ids, observations)
	if err := send(ctx, s.tx, &batch, "lock %d workspaces and read their objects", len(ids)); err != nil {
		return nil, nil, err
	}
	return workspaces, observations, nil
}

func addObject(o *workspace.Observation, kind string, deleted bool, data []byte) error {
	switch kind {
	case ingest.KindDeployment:
		o.Seen = true
		if deleted {
			return nil
		}
		d, err := ingest.DecodeStoredDeployment(data)
		o.Deployment = &d
		return err
	case ingest.KindReplicaSet:
		rs, err := ingest.DecodeStoredReplicaSet(data)
		o.ReplicaSets = append(o.ReplicaSets, rs)
		return err
	default:
		var pod events.ObservedPod
		err := json.Unmarshal(data, &pod)
		o.Pods = append(o.Pods, pod)
		return err //nolint:wrapcheck // LockWorkspaces wraps it
	}
}

// queueClocks adds the statement that reads the agents' clocks and configurations. It must run after the lock, so
// that clocks never go backwards between transactions.
func queueClocks(batch *pgx.Batch, ids []uuid.UUID, out map[uuid.UUID]*workspace.Observation) {
	type clock struct {
		ticked     *time.Time
		settings   agent.Settings
		workspaces []uuid.UUID
	}
	batch.Queue(`
		select a.ticked_at, `+configurationColumn+`, array_agg(w.id) from workspaces w join agents a on a.id = w.agent_id
		where w.id = any($1) group by a.id`, ids).Query(func(rows pgx.Rows) error {
		clocks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (clock, error) {
			var c clock
			err := row.Scan(&c.ticked, &c.settings, &c.workspaces)
			return c, err //nolint:wrapcheck // wrapped below
		})
		if err != nil {
			return fmt.Errorf("read the clocks of agents: %w", err)
		}
		for _, c := range clocks {
			configuration := c.settings.Configuration()
			for _, id := range c.workspaces {
				out[id].Clock = fromNullable(c.ticked).UTC()
				out[id].Timeouts, out[id].AgePolicies = configuration.Timeouts(), configuration.AgePolicies()
			}
		}
		return nil
	})
}
