package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// Kinds of objects that decisions are taken from.
const (
	KindDeployment = "deployment"
	KindReplicaSet = "replicaset"
	KindPod        = "pod"
)

// Observations stores what clusters say. It has one writer at a time, the reader of the stream OBSERVED, whose transactions lock what they
// need in this order: clusters, objects, workspaces.
type Observations struct {
	Cell topology.Cell
}

// Object is the last observation of one object.
type Object struct {
	AgentID               int64
	Kind, Namespace, Name string
	UID, ClusterUID       string
	Epoch                 int64
	// Version is the resourceVersion.
	Version string
	Deleted bool
	// WorkspaceID is zero without one.
	WorkspaceID uuid.UUID
	// ResyncID of the full resync that it is a member of; empty for none.
	ResyncID string
	// Data is the event's, as JSON that PostgreSQL takes.
	Data string
}

// ObjectKey names an object.
type ObjectKey struct {
	AgentID               int64
	Kind, Namespace, Name string
}

// Key names the object.
func (o Object) Key() ObjectKey { return ObjectKey{o.AgentID, o.Kind, o.Namespace, o.Name} }

// Merge is the object after another observation of it: the newer one counts, of the same version the deletion, and the last resync sticks.
func (o Object) Merge(next Object) Object {
	if next.ResyncID == "" {
		next.ResyncID = o.ResyncID
	}
	if newer(&next, &o) {
		return next
	}
	o.ResyncID = next.ResyncID
	return o
}

func newer(a, b *Object) bool {
	if a.Epoch != b.Epoch {
		return a.Epoch > b.Epoch
	}
	if order := domain.CompareVersions(a.Version, b.Version); order != 0 {
		return order > 0
	}
	return a.Deleted && !b.Deleted
}

// Altered is an object that was stored, and what was stored before.
type Altered struct {
	Key         ObjectKey
	UID         string
	WorkspaceID uuid.UUID
	Deleted     bool

	// Known is that it was stored before; the rest is what it was.
	Known             bool
	UIDBefore         string
	WorkspaceIDBefore uuid.UUID
	DeletedBefore     bool
}

// Put stores what is newer than what is there, stamps the members of resyncs, and returns the objects that are stored anew. Keys are named once.
func (s *Observations) Put(ctx context.Context, tx pgx.Tx, objects []Object) ([]Altered, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	stamped, err := s.stamp(ctx, tx, objects)
	if err != nil || len(stamped) == len(objects) {
		return nil, err
	}
	var c objectColumns
	for i := range objects {
		if !stamped[i] {
			c.add(&objects[i])
		}
	}
	rows, err := tx.Query(ctx, `
		with put as (
			insert into observed_objects as o (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, resync_id, data)
			select n.agent_id, n.kind, n.namespace, n.name, n.uid, n.cluster_uid, n.epoch, n.version::numeric, n.deleted, n.workspace_id, n.resync_id, n.data
			from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::boolean[], $10::uuid[], $11::text[], $12::text[])
				as n (agent_id, kind, namespace, name, uid, cluster_uid, epoch, version, deleted, workspace_id, resync_id, data)
			on conflict (agent_id, kind, namespace, name) do update set
				uid = excluded.uid, cluster_uid = excluded.cluster_uid, epoch = excluded.epoch, resource_version = excluded.resource_version,
				deleted = excluded.deleted, workspace_id = excluded.workspace_id, resync_id = coalesce(excluded.resync_id, o.resync_id), data = excluded.data
			where (excluded.epoch, excluded.resource_version, excluded.deleted) > (o.epoch, o.resource_version, o.deleted)
			returning agent_id, kind, namespace, name, uid, workspace_id, deleted
		)
		select put.agent_id, put.kind, put.namespace, put.name, put.uid, put.workspace_id, put.deleted,
			old.uid is not null, coalesce(old.uid, ''), old.workspace_id, coalesce(old.deleted, false)
		from put left join observed_objects old using (agent_id, kind, namespace, name)
		where put.workspace_id is not null or old.workspace_id is not null or put.kind = 'deployment'`,
		c.agents, c.kinds, c.namespaces, c.names, c.uids, c.clusters, c.epochs, c.versions, c.deleted, c.workspaces, c.resyncs, c.data)
	if err != nil {
		return nil, fmt.Errorf("store %d observations: %w", len(objects), err)
	}
	altered, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Altered, error) {
		var a Altered
		var workspace, before *uuid.UUID
		err := row.Scan(&a.Key.AgentID, &a.Key.Kind, &a.Key.Namespace, &a.Key.Name, &a.UID, &workspace, &a.Deleted,
			&a.Known, &a.UIDBefore, &before, &a.DeletedBefore)
		a.WorkspaceID, a.WorkspaceIDBefore = fromNullable(workspace), fromNullable(before)
		return a, err //nolint:wrapcheck // Put says what it asked for
	})
	if err != nil {
		return nil, fmt.Errorf("store %d observations: %w", len(objects), err)
	}
	return altered, nil
}

// stamp notes the membership of those that bring nothing newer than what is stored, which are nearly all that a full resync has, and tells which they are: one narrow
// look at each instead of an attempt to store it.
func (s *Observations) stamp(ctx context.Context, tx pgx.Tx, objects []Object) (map[int]bool, error) {
	var c objectColumns
	var members []int
	for i := range objects {
		if objects[i].ResyncID != "" {
			c.add(&objects[i])
			members = append(members, i)
		}
	}
	if len(members) == 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	rows, err := tx.Query(ctx, `
		update observed_objects o set resync_id = n.resync_id
		from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::boolean[], $8::text[], $9::bigint[])
			as n (agent_id, kind, namespace, name, epoch, version, deleted, resync_id, member)
		where (o.agent_id, o.kind, o.namespace, o.name) = (n.agent_id, n.kind, n.namespace, n.name)
			and (n.epoch, n.version::numeric, n.deleted) <= (o.epoch, o.resource_version, o.deleted)
		returning n.member`,
		c.agents, c.kinds, c.namespaces, c.names, c.epochs, c.versions, c.deleted, c.resyncs, members)
	if err != nil {
		return nil, fmt.Errorf("stamp %d members of resyncs: %w", len(members), err)
	}
	stamped := make(map[int]bool, len(members))
	var member int
	if _, err := pgx.ForEachRow(rows, []any{&member}, func() error { stamped[member] = true; return nil }); err != nil {
		return nil, fmt.Errorf("stamp %d members of resyncs: %w", len(members), err)
	}
	return stamped, nil
}

// objectColumns are the columns of many objects, one array each.
type objectColumns struct {
	agents, epochs                                           []int64
	kinds, namespaces, names, uids, clusters, versions, data []string
	deleted                                                  []bool
	workspaces                                               []*uuid.UUID
	resyncs                                                  []*string
}

func (c *objectColumns) add(o *Object) {
	c.agents, c.epochs = append(c.agents, o.AgentID), append(c.epochs, o.Epoch)
	c.kinds, c.namespaces, c.names = append(c.kinds, o.Kind), append(c.namespaces, o.Namespace), append(c.names, o.Name)
	c.uids, c.clusters, c.versions = append(c.uids, o.UID), append(c.clusters, o.ClusterUID), append(c.versions, o.Version)
	c.data, c.deleted = append(c.data, o.Data), append(c.deleted, o.Deleted)
	c.workspaces, c.resyncs = append(c.workspaces, nullable(o.WorkspaceID)), append(c.resyncs, nullable(o.ResyncID))
}

// Highest returns the highest version of each kind stored in an epoch of an agent's cluster.
func (s *Observations) Highest(ctx context.Context, tx pgx.Tx, agentID, epoch int64) (domain.Versions, error) {
	rows, err := tx.Query(ctx, `select kind, max(resource_version)::text from observed_objects where agent_id = $1 and epoch = $2 group by kind`, agentID, epoch)
	if err != nil {
		return nil, fmt.Errorf("read the highest versions of agent %d: %w", agentID, err)
	}
	versions := domain.Versions{}
	var kind, version string
	if _, err := pgx.ForEachRow(rows, []any{&kind, &version}, func() error { versions[kind] = version; return nil }); err != nil {
		return nil, fmt.Errorf("read the highest versions of agent %d: %w", agentID, err)
	}
	return versions, nil
}

// LockAndObserve locks the workspaces, as [Workspaces.Lock] does, and returns those that exist with what their clusters have said of them: the objects
// stored, and the agents' clocks. An object counts if it is in the workspace's own namespace, a Deployment if it has its name; what
// others labelled with its id is left aside.
func (s *Observations) LockAndObserve(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]domain.Workspace, map[uuid.UUID]*domain.Observation, error) {
	var batch pgx.Batch
	workspaces, observations := queueLock(&batch, ids), make(map[uuid.UUID]*domain.Observation, len(ids))
	for _, id := range ids {
		observations[id] = &domain.Observation{}
	}
	// Statements of a batch run one after the other: this one sees what the lock has waited for.
	batch.Queue(`
		select o.workspace_id, o.kind, o.deleted, case when o.deleted then '{}' else o.data end
		from observed_objects o join workspaces w on w.id = o.workspace_id and w.agent_id = o.agent_id and w.namespace = o.namespace
		where o.workspace_id = any($1) and (o.kind = 'deployment' and o.name = w.name or o.kind in ('pod', 'replicaset') and not o.deleted)
		order by o.kind, o.name`, ids).Query(func(rows pgx.Rows) error {
		var (
			id      uuid.UUID
			kind    string
			deleted bool
			data    []byte
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &kind, &deleted, &data}, func() error {
			if err := take(observations[id], kind, deleted, data); err != nil {
				return fmt.Errorf("%s of workspace %s: %w", kind, id, err)
			}
			return nil
		})
		return err //nolint:wrapcheck // said below
	})
	queueClocks(&batch, ids, observations)
	if err := send(ctx, tx, &batch, "lock %d workspaces and read what clusters said of them", len(ids)); err != nil {
		return nil, nil, err
	}
	return workspaces, observations, nil
}

func take(o *domain.Observation, kind string, deleted bool, data []byte) error {
	switch kind {
	case KindDeployment:
		o.Seen = true
		if deleted {
			return nil
		}
		return json.Unmarshal(data, &o.Deployment) //nolint:wrapcheck // Observe says of what
	case KindReplicaSet:
		var rs events.ObservedReplicaSet
		err := json.Unmarshal(data, &rs)
		o.ReplicaSets = append(o.ReplicaSets, rs)
		return err //nolint:wrapcheck // Observe says of what
	default:
		var pod events.ObservedPod
		err := json.Unmarshal(data, &pod)
		o.Pods = append(o.Pods, pod)
		return err //nolint:wrapcheck // Observe says of what
	}
}

// queueClocks has the batch give each workspace its agent's time and what the agent is configured with. It is read once the workspaces are locked, so that
// nobody who looked at them later has known more.
func queueClocks(batch *pgx.Batch, ids []uuid.UUID, out map[uuid.UUID]*domain.Observation) {
	type agent struct {
		ticked     *time.Time
		settings   domain.AgentSettings
		workspaces []uuid.UUID
	}
	batch.Queue(`
		select a.ticked_at, a.configuration, array_agg(w.id) from workspaces w join agents a on a.id = w.agent_id where w.id = any($1) group by a.id`, ids).Query(func(rows pgx.Rows) error {
		agents, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent, error) {
			var a agent
			err := row.Scan(&a.ticked, &a.settings, &a.workspaces)
			return a, err //nolint:wrapcheck // said below
		})
		if err != nil {
			return fmt.Errorf("read the clocks of agents: %w", err)
		}
		for _, a := range agents {
			c := a.settings.Configuration()
			for _, id := range a.workspaces {
				out[id].Clock, out[id].Patience, out[id].AgePolicies = fromNullable(a.ticked).UTC(), c.Patience(), c.AgePolicies()
			}
		}
		return nil
	})
}
