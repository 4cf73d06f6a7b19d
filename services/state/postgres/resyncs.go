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
	if _, err = s.tx.Exec(ctx, `delete from resync_members where agent_id = $1`, c.AgentID); err != nil {
		return fmt.Errorf("delete the members of the last full resync of agent %d: %w", c.AgentID, err)
	}
	return nil
}

// membersOfResync selects the distinct members of the resync $2 of the agent $1.
const membersOfResync = `
	select distinct u.kind, u.namespace, u.name
	from resync_members m, unnest(m.kinds, m.namespaces, m.names) as u (kind, namespace, name)
	where m.agent_id = $1 and m.resync_id = $2`

// FindOpenResync implements ingest.ResyncStore.
func (s *IngestStore) FindOpenResync(
	ctx context.Context,
	c agent.Cluster,
	resyncID string,
) (ingest.OpenResync, bool, error) {
	var r ingest.OpenResync
	err := s.tx.QueryRow(ctx, `
		select begun_at, expected, (select count(*) from (`+membersOfResync+`) as members)
		from resyncs where agent_id = $1 and resync_id = $2 and cluster_uid = $3 and epoch = $4 and outcome = 'open'`,
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

// CloseResync implements ingest.ResyncStore.
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

// notAboveList selects stored objects whose version is not above the listed version of their kind. Objects created
// after the list are left out.
const notAboveList = `
	where r.agent_id = $1 and r.resync_id = $2 and o.agent_id = r.agent_id and o.kind = l.kind
		and (o.epoch < r.epoch or o.epoch = r.epoch and o.resource_version <= l.version::numeric)`

// MarkAbsent implements ingest.ResyncStore. It also removes rows of objects that were deleted before,
// except Deployments.
func (s *IngestStore) MarkAbsent(ctx context.Context, agentID int64, resyncID string) ([]ingest.ObjectChange, error) {
	_, err := s.tx.Exec(ctx, `
		delete from observed_objects o
		using resyncs r, jsonb_each_text(r.list_versions) as l (kind, version) `+notAboveList+`
			and o.deleted and o.kind <> 'deployment'`, agentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("remove the deleted objects of agent %d: %w", agentID, err)
	}
	rows, err := s.tx.Query(ctx, `
		with absent as materialized (
			select o.kind, o.namespace, o.name
			from observed_objects o, resyncs r, jsonb_each_text(r.list_versions) as l (kind, version) `+notAboveList+`
				and not o.deleted
			except `+membersOfResync+`
		)
		update observed_objects o set deleted = true from absent a
		where o.agent_id = $1 and (o.kind, o.namespace, o.name) = (a.kind, a.namespace, a.name)
		returning o.kind, o.namespace, o.name, o.uid, o.workspace_id`, agentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("mark the absent objects of agent %d: %w", agentID, err)
	}
	absent, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.ObjectChange, error) {
		c := ingest.ObjectChange{Key: ingest.ObjectKey{AgentID: agentID}, Deleted: true, Existed: true}
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

// WorkspacesToRepair implements ingest.ResyncStore. It compares in memory: PostgreSQL takes seconds to join or
// group 50,000 rows of each side, because statistics are old during a resync.
func (s *IngestStore) WorkspacesToRepair(ctx context.Context, agentID int64) ([]uuid.UUID, error) {
	deployments, err := s.existingDeployments(ctx, agentID)
	if err != nil {
		return nil, fmt.Errorf("read the Deployments of agent %d: %w", agentID, err)
	}
	rows, err := s.tx.Query(ctx, `
		select id, namespace, name, applied_uid, applied_revision from workspaces
		where agent_id = $1 and actual_state <> 'terminated'`, agentID)
	if err != nil {
		return nil, fmt.Errorf("read the workspaces to repair of agent %d: %w", agentID, err)
	}
	var (
		ids     []uuid.UUID
		id      uuid.UUID
		key     deploymentKey
		applied workspace.AppliedDeployment
	)
	scan := []any{&id, &key.namespace, &key.name, &applied.UID, &applied.Revision}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		if existing, exists := deployments[key]; !exists || applied.ReplacedBy(existing) {
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the workspaces to repair of agent %d: %w", agentID, err)
	}
	return ids, nil
}

type deploymentKey struct{ namespace, name string }

// existingDeployments returns the observed Deployments of an agent. It cuts the revision out of the text: parsing
// all JSON takes longer than the rest, and quotes inside JSON strings are escaped, so only the annotation matches.
func (s *IngestStore) existingDeployments(
	ctx context.Context, agentID int64,
) (map[deploymentKey]workspace.ExistingDeployment, error) {
	rows, err := s.tx.Query(ctx, `
		select namespace, name, uid, split_part(split_part(data, '"' || $2 || '":"', 2), '"', 1)
		from observed_objects where agent_id = $1 and kind = 'deployment' and not deleted`,
		agentID, workspace.AnnotationDesiredRevision)
	if err != nil {
		return nil, err //nolint:wrapcheck // WorkspacesToRepair wraps it
	}
	var key deploymentKey
	var existing workspace.ExistingDeployment
	deployments := map[deploymentKey]workspace.ExistingDeployment{}
	scan := []any{&key.namespace, &key.name, &existing.UID, &existing.Revision}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		deployments[key] = existing
		return nil
	})
	return deployments, err //nolint:wrapcheck // WorkspacesToRepair wraps it
}

// DeploymentsOfTerminated implements ingest.ResyncStore. The dispatcher's clock may differ from the watcher's,
// so a termination less than a minute before the resync does not count.
func (s *IngestStore) DeploymentsOfTerminated(
	ctx context.Context, c agent.Cluster, resyncID string, at time.Time,
) ([]ingest.FoundOrphan, error) {
	rows, err := s.tx.Query(ctx, `
		select o.uid, o.workspace_id, o.namespace, o.name
		from resyncs r
			join observed_objects o on o.agent_id = r.agent_id and o.kind = 'deployment' and not o.deleted
			join workspaces w on w.id = o.workspace_id and w.agent_id = o.agent_id and w.actual_state = 'terminated'
				and w.applied_at < r.begun_at - interval '1 minute'
		where r.agent_id = $1 and r.resync_id = $2 order by o.namespace, o.name`, c.AgentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("read the Deployments of terminated workspaces of agent %d: %w", c.AgentID, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.FoundOrphan, error) {
		o := ingest.FoundOrphan{Orphan: orphan.Orphan{AgentID: c.AgentID, SeenAt: at}, ClusterUID: c.UID}
		var id uuid.UUID
		err := row.Scan(&o.UID, &id, &o.Namespace, &o.Name)
		o.Label = id.String()
		return o, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("read the Deployments of terminated workspaces of agent %d: %w", c.AgentID, err)
	}
	return found, nil
}
