package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/render"
)

const orphanColumns = `o.agent_id, o.uid, o.workspace, o.namespace, o.name, o.seen_at, o.desired_revision, coalesce(o.user_id, 0), o.message, o.ended_at`

func scanOrphan(row pgx.CollectableRow) (domain.Orphan, error) {
	var o domain.Orphan
	var ended *time.Time
	err := row.Scan(&o.AgentID, &o.UID, &o.Label, &o.Namespace, &o.Name, &o.SeenAt, &o.DesiredRevision, &o.UserID, &o.Message, &ended)
	o.SeenAt, o.EndedAt = o.SeenAt.UTC(), fromNullable(ended).UTC()
	return o, err //nolint:wrapcheck // the query's caller says what it asked for
}

// OrphanSeen is an orphan that a cluster shows.
type OrphanSeen struct {
	domain.Orphan

	ClusterUID string
}

// TellOrphans stores orphans and tells of them, once for each.
func (s *Observations) TellOrphans(ctx context.Context, tx pgx.Tx, orphans []OrphanSeen) error {
	for _, o := range orphans {
		var told bool
		err := tx.QueryRow(ctx, `
			insert into orphans as o (agent_id, uid, workspace, namespace, name, seen_at) values ($1, $2, $3, $4, $5, $6)
			on conflict (agent_id, uid) do update set workspace = excluded.workspace where o.desired_revision = 0
			returning xmax <> 0`,
			o.AgentID, o.UID, o.Label, o.Namespace, o.Name, o.SeenAt).Scan(&told)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		if err != nil {
			return fmt.Errorf("store orphan %s: %w", o, err)
		}
		if told {
			continue
		}
		err = s.tell(ctx, tx, event.Attributes{
			Type: events.TypeWorkspaceOrphaned, Subject: o.Label, ID: o.ClusterUID + "/" + o.UID + "/orphaned", Time: o.SeenAt,
		}, s.Cell.Workspace(0, o.Label, "orphaned"), events.WorkspaceOrphaned{
			WorkspaceID: o.Label, Name: o.Name, AgentID: int(o.AgentID), Namespace: o.Namespace, Object: deploymentOf(o.Orphan),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ForgetOrphans takes out what is no orphan any more: its Deployment is gone, is another one, or names another workspace. What is being deleted stays until
// the dispatcher says that all of it is gone.
func (s *Observations) ForgetOrphans(ctx context.Context, tx pgx.Tx, deployments []Altered) error {
	if len(deployments) == 0 {
		return nil
	}
	var agents []int64
	var namespaces, names, uids []string
	for i := range deployments {
		a := &deployments[i]
		agents, namespaces, names, uids = append(agents, a.Key.AgentID), append(namespaces, a.Key.Namespace), append(names, a.Key.Name), append(uids, a.UIDBefore)
	}
	_, err := tx.Exec(ctx, `
		delete from orphans o using unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) as n (agent_id, namespace, name, uid)
		where (o.agent_id, o.namespace, o.name, o.uid) = (n.agent_id, n.namespace, n.name, n.uid) and o.desired_revision = 0`, agents, namespaces, names, uids)
	if err != nil {
		return fmt.Errorf("forget what is no orphan any more: %w", err)
	}
	return nil
}

// Orphans returns orphans of the agents, nil for every one, after another in the order of agent, namespace and name. Those that are deleted are left out.
func (s *Observations) Orphans(ctx context.Context, db Querier, agentIDs []int64, after domain.Orphan, size int) ([]domain.Orphan, error) {
	rows, err := db.Query(ctx, `
		select `+orphanColumns+` from orphans o
		where o.ended_at is null and ($1::bigint[] is null or o.agent_id = any($1)) and (o.agent_id, o.namespace, o.name, o.uid) > ($2, $3, $4, $5)
		order by o.agent_id, o.namespace, o.name, o.uid limit $6`, agentIDs, after.AgentID, after.Namespace, after.Name, after.UID, size)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanOrphan)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", err)
	}
	return out, nil
}

// LockOrphan locks the agent and the orphan at a place, and returns the orphan. Fault not_found.
func (s *Observations) LockOrphan(ctx context.Context, tx pgx.Tx, agentID int64, namespace, name string) (domain.Orphan, error) {
	place := domain.Orphan{AgentID: agentID, Namespace: namespace, Name: name}
	if _, err := s.LockClusters(ctx, tx, []int64{agentID}); err != nil {
		return place, err
	}
	rows, err := tx.Query(ctx, `
		select `+orphanColumns+` from orphans o where o.agent_id = $1 and o.namespace = $2 and o.name = $3 and o.ended_at is null
		order by o.seen_at desc limit 1 for update`, agentID, namespace, name)
	if err != nil {
		return place, fmt.Errorf("lock orphan %s: %w", place, err)
	}
	o, err := pgx.CollectExactlyOneRow(rows, scanOrphan)
	if errors.Is(err, pgx.ErrNoRows) {
		return place, fault.Wrap(err, errcode.NotFound, "orphan %s does not exist", place)
	}
	if err != nil {
		return place, fmt.Errorf("lock orphan %s: %w", place, err)
	}
	return o, nil
}

// LockDeleting locks and returns those orphans, by agent and label, whose deletion was asked for, also those that are deleted.
func (s *Observations) LockDeleting(ctx context.Context, tx pgx.Tx, agentIDs []int64, labels []string) ([]domain.Orphan, error) {
	rows, err := tx.Query(ctx, `
		select `+orphanColumns+` from orphans o
		where o.desired_revision > 0 and (o.agent_id, o.workspace) in (select n.agent_id, n.workspace from unnest($1::bigint[], $2::text[]) as n (agent_id, workspace)) order by o.agent_id, o.uid for update`, agentIDs, labels)
	if err != nil {
		return nil, fmt.Errorf("lock orphans: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanOrphan)
	if err != nil {
		return nil, fmt.Errorf("lock orphans: %w", err)
	}
	return out, nil
}

// Sight returns what the cluster shows of orphans, in their order.
func (s *Observations) Sight(ctx context.Context, db Querier, orphans []domain.Orphan) ([]domain.Sighting, error) {
	agents, namespaces, names := make([]int64, len(orphans)), make([]string, len(orphans)), make([]string, len(orphans))
	for i, o := range orphans {
		agents[i], namespaces[i], names[i] = o.AgentID, o.Namespace, o.Name
	}
	rows, err := db.Query(ctx, `
		select coalesce((
				select c->>'image' from observed_objects p, jsonb_array_elements(p.data::jsonb->'containers') as c
				where (p.agent_id, p.namespace) = (n.agent_id, n.namespace) and p.kind = 'pod' and not p.deleted and p.data::jsonb->>'deployment' = n.name
					and coalesce(c->>'init', 'false') = 'false' and c->>'image' <> ''
				order by p.name limit 1), ''),
			coalesce((d.data::jsonb->>'spec_replicas')::numeric, 0)::bigint, coalesce(d.data::jsonb->'object'->'annotations'->>$4, '')
		from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as n (agent_id, namespace, name, position)
			left join observed_objects d on (d.agent_id, d.kind, d.namespace, d.name) = (n.agent_id, 'deployment', n.namespace, n.name)
		order by n.position`, agents, namespaces, names, domain.AnnotationDesiredRevision)
	if err != nil {
		return nil, fmt.Errorf("look at %d orphans: %w", len(orphans), err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (domain.Sighting, error) {
		var g domain.Sighting
		var revision string
		err := row.Scan(&g.Image, &g.Replicas, &revision)
		if number, notOne := strconv.ParseInt(revision, 10, 64); notOne == nil && number > 0 && number < domain.MaxRevision {
			g.Revision = number
		}
		return g, err //nolint:wrapcheck // Sight says what it asked for
	})
	if err != nil {
		return nil, fmt.Errorf("look at %d orphans: %w", len(orphans), err)
	}
	return out, nil
}

// DropOrphan takes out a locked orphan that has become a workspace.
func (s *Observations) DropOrphan(ctx context.Context, tx pgx.Tx, o domain.Orphan) error {
	if _, err := tx.Exec(ctx, `delete from orphans where agent_id = $1 and uid = $2`, o.AgentID, o.UID); err != nil {
		return fmt.Errorf("drop orphan %s: %w", o, err)
	}
	return nil
}

// OrphanSaving is a locked orphan before and after a change.
type OrphanSaving struct{ Before, After domain.Orphan }

// SaveOrphan stores a locked orphan and tells what changed: the dispatcher what to delete, and everybody that it is deleted. What the dispatcher was told goes
// away by itself then. At is the time of the event that it is.
func (s *Observations) SaveOrphan(ctx context.Context, tx pgx.Tx, saving OrphanSaving, at time.Time) error {
	before, o := saving.Before, saving.After
	if before == o {
		return nil
	}
	_, err := tx.Exec(ctx, `update orphans set desired_revision = $3, user_id = nullif($4::bigint, 0), message = $5, ended_at = $6 where agent_id = $1 and uid = $2`,
		o.AgentID, o.UID, o.DesiredRevision, o.UserID, o.Message, nullable(o.EndedAt))
	if err != nil {
		return fmt.Errorf("save orphan %s: %w", o, err)
	}
	ended := before.EndedAt.IsZero() && !o.EndedAt.IsZero()
	if before.DesiredRevision == o.DesiredRevision && !ended {
		return nil
	}
	desired, err := message(ctx, s.Cell, event.Attributes{
		Type: events.TypeDesiredWorkspace, Subject: o.Label, ID: o.Label + "/dispatch/" + strconv.FormatInt(o.DesiredRevision, 10), Time: at,
	}, s.Cell.Desired(o.AgentID, o.Label), render.DeletedOrphan(o))
	if err != nil {
		return err
	}
	if ended {
		fade(desired)
	}
	if err := outbox.Insert(ctx, tx, desired); err != nil {
		return fmt.Errorf("tell the dispatcher of orphan %s: %w", o, err)
	}
	if !ended {
		return nil
	}
	return s.tell(ctx, tx, event.Attributes{
		Type: events.TypeWorkspaceOrphanDeleted, Subject: o.Label, ID: strconv.FormatInt(o.AgentID, 10) + "/" + o.UID + "/orphan_deleted", Time: o.EndedAt,
	}, s.Cell.Workspace(0, o.Label, "orphan_deleted"), events.WorkspaceOrphanDeleted{
		WorkspaceID: o.Label, Name: o.Name, AgentID: int(o.AgentID), Namespace: o.Namespace, Object: deploymentOf(o), UserID: int(o.UserID),
	})
}

// OtherDeletions returns, of orphans with the same agent and label as this one, the highest revision that asked for a deletion, and whether one
// of them is being deleted. They are locked.
func (s *Observations) OtherDeletions(ctx context.Context, tx pgx.Tx, o domain.Orphan) (highest int64, deleting bool, err error) {
	others, err := s.LockDeleting(ctx, tx, []int64{o.AgentID}, []string{o.Label})
	if err != nil {
		return 0, false, err
	}
	for _, other := range others {
		highest = max(highest, other.DesiredRevision)
		deleting = deleting || other.UID != o.UID && other.IsBeingDeleted()
	}
	return highest, deleting, nil
}

// revenants are Deployments of workspaces that were terminated before the resync began: the cluster has them again.
func (s *Observations) revenants(ctx context.Context, tx pgx.Tx, cluster domain.Cluster, resyncID string, at time.Time) ([]OrphanSeen, error) {
	rows, err := tx.Query(ctx, `
		select o.uid, o.workspace_id, o.namespace, o.name
		from resyncs r join observed_objects o on o.agent_id = r.agent_id and o.resync_id = r.resync_id and o.kind = 'deployment' and not o.deleted
			join workspaces w on w.id = o.workspace_id and w.agent_id = o.agent_id and w.actual_state = 'terminated'
				and w.applied_at < r.begun_at - interval '1 minute' -- dispatcher and watcher have a clock each
		where r.agent_id = $1 and r.resync_id = $2 order by o.namespace, o.name`, cluster.AgentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("look for what is back: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (OrphanSeen, error) {
		o := OrphanSeen{Orphan: domain.Orphan{AgentID: cluster.AgentID, SeenAt: at}, ClusterUID: cluster.UID}
		var id uuid.UUID
		err := row.Scan(&o.UID, &id, &o.Namespace, &o.Name)
		o.Label = id.String()
		return o, err //nolint:wrapcheck // revenants says what it asked for
	})
	if err != nil {
		return nil, fmt.Errorf("look for what is back: %w", err)
	}
	return found, nil
}

func deploymentOf(o domain.Orphan) events.ObjectReference {
	return events.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: o.Namespace, Name: o.Name}
}
