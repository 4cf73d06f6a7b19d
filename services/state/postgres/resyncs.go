package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// ResyncKnown implements ingest.ObservedStore.
func (s *IngestStore) ResyncKnown(ctx context.Context, agentID int64, resyncID string) (bool, error) {
	var known bool
	err := s.tx.QueryRow(ctx, `select exists (select from resyncs where agent_id = $1 and resync_id = $2)`,
		agentID, resyncID).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("read resync %s of agent %d: %w", resyncID, agentID, err)
	}
	return known, nil
}

// BeginResync implements ingest.ObservedStore.
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
	return nil
}

// OpenResync implements ingest.ObservedStore.
func (s *IngestStore) OpenResync(
	ctx context.Context,
	c agent.Cluster,
	resyncID string,
) (ingest.OpenResync, bool, error) {
	var r ingest.OpenResync
	err := s.tx.QueryRow(ctx, `
		select begun_at, expected, (select count(*) from observed_objects o where o.agent_id = r.agent_id and o.resync_id = r.resync_id)
		from resyncs r where agent_id = $1 and resync_id = $2 and cluster_uid = $3 and epoch = $4 and outcome = 'open'`,
		c.AgentID, resyncID, c.UID, c.Epoch).Scan(&r.Begun, &r.Expected, &r.Received)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("read resync %s of agent %d: %w", resyncID, c.AgentID, err)
	}
	r.Begun = r.Begun.UTC()
	return r, true, nil
}

// CloseResync implements ingest.ObservedStore.
func (s *IngestStore) CloseResync(
	ctx context.Context, agentID int64, resyncID string, received int64, complete bool, at time.Time,
) error {
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	_, err := s.tx.Exec(ctx, `
		update resyncs set outcome = $3, received = $4, ended_at = $5 where agent_id = $1 and resync_id = $2`,
		agentID, resyncID, outcome, received, at)
	if err != nil {
		return fmt.Errorf("close resync %s of agent %d: %w", resyncID, agentID, err)
	}
	return nil
}

// listedBelow joins objects with the versions that a resync listed for their kinds. Objects created after
// the list are left out.
const listedBelow = `
	where r.agent_id = $1 and r.resync_id = $2 and o.agent_id = r.agent_id and o.kind = l.kind
		and (o.epoch < r.epoch or o.epoch = r.epoch and o.resource_version <= l.version::numeric)`

// MarkAbsent implements ingest.ObservedStore. It also removes rows of objects that were deleted before,
// except Deployments.
func (s *IngestStore) MarkAbsent(ctx context.Context, agentID int64, resyncID string) ([]ingest.ObjectChange, error) {
	_, err := s.tx.Exec(ctx, `
		delete from observed_objects o using resyncs r, jsonb_each_text(r.list_versions) as l (kind, version) `+listedBelow+`
			and o.deleted and o.kind <> 'deployment'`, agentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("remove the deleted objects of agent %d: %w", agentID, err)
	}
	rows, err := s.tx.Query(ctx, `
		update observed_objects o set deleted = true from resyncs r, jsonb_each_text(r.list_versions) as l (kind, version) `+listedBelow+`
		and not o.deleted and o.resync_id is distinct from r.resync_id
		returning o.kind, o.namespace, o.name, o.uid, o.workspace_id`, agentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("mark the absent objects of agent %d: %w", agentID, err)
	}
	absent, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.ObjectChange, error) {
		c := ingest.ObjectChange{Key: ingest.ObjectKey{AgentID: agentID}, Deleted: true, Known: true}
		var id *uuid.UUID
		err := row.Scan(&c.Key.Kind, &c.Key.Namespace, &c.Key.Name, &c.UID, &id)
		c.UIDBefore, c.WorkspaceID, c.WorkspaceIDBefore = c.UID, fromNullable(id), fromNullable(id)
		return c, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("mark the absent objects of agent %d: %w", agentID, err)
	}
	return absent, nil
}

// WorkspacesToRepair implements ingest.ObservedStore.
//
// It groups both sides instead of joining them: with old table statistics PostgreSQL would compare every
// row with every other. It finds the revision by a pattern: parsing all JSON takes longer than the rest,
// and quotes inside JSON strings are escaped, so the pattern matches the annotation only.
func (s *IngestStore) WorkspacesToRepair(ctx context.Context, agentID int64) ([]uuid.UUID, error) {
	rows, err := s.tx.Query(ctx, `
		select (array_agg(id) filter (where id is not null))[1] from (
			select namespace, name, id, applied_uid as uid, applied_revision::text as revision, false as there
			from workspaces where agent_id = $1 and actual_state <> 'terminated'
			union all
			select namespace, name, null, uid, substring(data from '"' || $2 || '":"([0-9]+)"'), true
			from observed_objects where agent_id = $1 and kind = 'deployment' and not deleted
		) as both_sides group by namespace, name
		having count(id) > 0 and (not bool_or(there)
			or max(uid) filter (where not there) <> '' and (count(distinct uid) > 1 or count(revision) < 2 or count(distinct revision) > 1))`,
		agentID, workspace.AnnotationDesiredRevision)
	if err != nil {
		return nil, fmt.Errorf("read the workspaces to repair of agent %d: %w", agentID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("read the workspaces to repair of agent %d: %w", agentID, err)
	}
	return ids, nil
}

// RevivedDeployments implements ingest.ObservedStore. The dispatcher's clock may differ from the watcher's,
// so a termination less than a minute before the resync does not count.
func (s *IngestStore) RevivedDeployments(
	ctx context.Context, c agent.Cluster, resyncID string, at time.Time,
) ([]ingest.FoundOrphan, error) {
	rows, err := s.tx.Query(ctx, `
		select o.uid, o.workspace_id, o.namespace, o.name
		from resyncs r
			join observed_objects o on o.agent_id = r.agent_id and o.resync_id = r.resync_id and o.kind = 'deployment' and not o.deleted
			join workspaces w on w.id = o.workspace_id and w.agent_id = o.agent_id and w.actual_state = 'terminated'
				and w.applied_at < r.begun_at - interval '1 minute'
		where r.agent_id = $1 and r.resync_id = $2 order by o.namespace, o.name`, c.AgentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("read the revived Deployments of agent %d: %w", c.AgentID, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.FoundOrphan, error) {
		o := ingest.FoundOrphan{Orphan: orphan.Orphan{AgentID: c.AgentID, SeenAt: at}, ClusterUID: c.UID}
		var id uuid.UUID
		err := row.Scan(&o.UID, &id, &o.Namespace, &o.Name)
		o.Label = id.String()
		return o, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("read the revived Deployments of agent %d: %w", c.AgentID, err)
	}
	return found, nil
}
