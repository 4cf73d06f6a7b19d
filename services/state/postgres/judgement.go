package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// EndedResyncsChannel is the NOTIFY channel of full resyncs that have ended. Its payloads are empty.
const EndedResyncsChannel = "ended_resyncs"

// selectEndedResyncs selects full resyncs that have ended and are not judged, in the epoch of their agent.
const selectEndedResyncs = `
	select ` + endedResyncColumns + ` from resyncs_to_judge e
		join resyncs r on r.agent_id = e.agent_id and r.resync_id = e.resync_id and r.outcome = 'open'
		join agents a on a.id = r.agent_id and a.cluster_uid = r.cluster_uid and a.epoch = r.epoch`

const endedResyncColumns = `
	e.agent_id, e.resync_id, r.cluster_uid, r.epoch, r.list_versions, r.begun_at, e.ended_at, r.expected, e.count`

// collectEndedResyncs reads rows of endedResyncColumns. The callers wrap its error.
func collectEndedResyncs(rows pgx.Rows) ([]ingest.EndedResync, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.EndedResync, error) { //nolint:wrapcheck // see above
		var r ingest.EndedResync
		err := row.Scan(
			&r.AgentID, &r.ID, &r.ClusterUID, &r.Epoch, &r.Listed, &r.Begun, &r.Ended, &r.Expected, &r.Count)
		r.Begun, r.Ended = r.Begun.UTC(), r.Ended.UTC()
		return r, err //nolint:wrapcheck // see above
	})
}

// queueEndedResyncs adds the statement that reads the ended resyncs of agents. The map is filled when the batch is
// sent.
func queueEndedResyncs(batch *pgx.Batch, agentIDs []int64) map[int64]ingest.EndedResync {
	ended := map[int64]ingest.EndedResync{}
	batch.Queue(selectEndedResyncs+` where e.agent_id = any($1)`, agentIDs).Query(func(rows pgx.Rows) error {
		found, err := collectEndedResyncs(rows)
		for _, r := range found {
			ended[r.AgentID] = r
		}
		return err
	})
	return ended
}

// EndedResyncs returns all full resyncs that have ended and are not judged, the oldest end first.
func (s *IngestStore) EndedResyncs(ctx context.Context) ([]ingest.EndedResync, error) {
	rows, err := s.tx.Query(ctx, selectEndedResyncs+` order by e.ended_at, e.agent_id`)
	if err != nil {
		return nil, fmt.Errorf("read the ended resyncs: %w", err)
	}
	found, err := collectEndedResyncs(rows)
	if err != nil {
		return nil, fmt.Errorf("read the ended resyncs: %w", err)
	}
	return found, nil
}

// CloseResync implements ingest.ResyncStore.
func (s *IngestStore) CloseResync(ctx context.Context, r ingest.EndedResync, received int64, complete bool) error {
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	_, err := s.tx.Exec(ctx, `
		update resyncs set outcome = $3, received = $4, ended_at = $5 where agent_id = $1 and resync_id = $2`,
		r.AgentID, r.ID, outcome, received, r.Ended)
	if err != nil {
		return fmt.Errorf("close resync %s of agent %d: %w", r.ID, r.AgentID, err)
	}
	_, err = s.tx.Exec(ctx, `delete from resyncs_to_judge where agent_id = $1 and resync_id = $2`, r.AgentID, r.ID)
	if err != nil {
		return fmt.Errorf("close resync %s of agent %d: %w", r.ID, r.AgentID, err)
	}
	return nil
}

// Judge implements ingest.ResyncStore. It reads all objects of the agent once.
func (s *IngestStore) Judge(ctx context.Context, r ingest.EndedResync) (*ingest.Judgement, error) {
	j := &ingest.Judgement{Resync: r}
	deployments, err := s.deploymentsOf(ctx, j)
	if err != nil {
		return nil, fmt.Errorf("compare resync %s of agent %d with its objects: %w", r.ID, r.AgentID, err)
	}
	if !r.IsComplete(j.Received) {
		return j, nil
	}
	if err := s.compareWorkspaces(ctx, j, deployments); err != nil {
		return nil, fmt.Errorf("read the workspaces of agent %d: %w", r.AgentID, err)
	}
	return j, nil
}

// deploymentsOf is compareMembers with settings that end with it. The planner must not choose a nested loop: it knows
// neither the number of members nor, during a resync, the number of objects.
func (s *IngestStore) deploymentsOf(ctx context.Context, j *ingest.Judgement) (map[objectName]deployment, error) {
	savepoint, err := s.tx.Begin(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // Judge wraps it
	}
	_, err = savepoint.Exec(ctx, `
		select set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true),
			set_config('work_mem', '32MB', true)`)
	if err != nil {
		return nil, err //nolint:wrapcheck // Judge wraps it
	}
	deployments, err := (&IngestStore{s.IngestStores, savepoint}).compareMembers(ctx, j)
	if err != nil {
		return nil, err
	}
	return deployments, savepoint.Rollback(ctx) //nolint:wrapcheck // Judge wraps it
}

// objectName is the key of an object without agent and kind.
type objectName struct{ namespace, name string }

// deployment is a Deployment that exists and is not absent.
type deployment struct {
	workspace.ExistingDeployment

	workspaceID uuid.UUID
}

// compareMembers compares the members of a resync with the stored objects. It sets the number of members and, if the
// resync is complete, the absent and the removable objects, and returns the Deployments.
//
// One statement reads each object once: the first row is the number of members, the others are the findings and the
// Deployments. It cuts the revision out of the text: parsing all JSON takes longer than the rest, and quotes inside
// JSON strings are escaped, so only the annotation matches.
func (s *IngestStore) compareMembers(ctx context.Context, j *ingest.Judgement) (map[objectName]deployment, error) {
	r := j.Resync
	rows, err := s.tx.Query(ctx, `
		with members as materialized (
			select distinct kind, namespace, name from (
				select unnest(kinds) as kind, unnest(namespaces) as namespace, unnest(names) as name
				from resync_members where agent_id = $1 and resync_id = $5
			) as m
		), received as materialized (
			select count(*) as members from members
		), `+lists+`, objects as (
			select kind, namespace, name, uid, deleted, workspace_id, `+covered+` as covered,
				case when kind = 'deployment'
					then split_part(split_part(data, '"' || $6 || '":"', 2), '"', 1) else '' end as revision
			from observed_objects o left join lists l using (kind) where agent_id = $1
		)
		select members, '', '', '', '', false, null, false, '' from received
		union all
		select 0, o.kind, o.namespace, o.name, o.uid, o.deleted, o.workspace_id, o.covered and m.kind is null, o.revision
		from objects o left join members m using (kind, namespace, name)
		where (select members from received) = $7 and (
			not o.deleted and (o.kind = 'deployment' or o.covered and m.kind is null)
			or o.deleted and o.kind <> 'deployment' and o.covered)`,
		append(listed(r), r.ID, workspace.AnnotationDesiredRevision, r.Expected)...)
	if err != nil {
		return nil, err //nolint:wrapcheck // Judge wraps it
	}
	var (
		members         int64
		key             = ingest.ObjectKey{AgentID: r.AgentID}
		existing        workspace.ExistingDeployment
		deleted, absent bool
		workspaceID     *uuid.UUID
	)
	deployments := map[objectName]deployment{}
	scan := []any{
		&members, &key.Kind, &key.Namespace, &key.Name, &existing.UID, &deleted, &workspaceID, &absent, &existing.Revision,
	}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		switch {
		case key.Kind == "":
			j.Received = members
		case deleted:
			j.Findings.Removable = append(j.Findings.Removable, key)
		case absent:
			object := ingest.AbsentObject{Key: key, WorkspaceID: fromNullable(workspaceID)}
			j.Findings.Absent = append(j.Findings.Absent, object)
		default:
			deployments[objectName{key.Namespace, key.Name}] = deployment{existing, fromNullable(workspaceID)}
		}
		workspaceID = nil
		return nil
	})
	return deployments, err //nolint:wrapcheck // Judge wraps it
}

// compareWorkspaces finds differing workspaces and unowned Deployments. It compares in memory: PostgreSQL takes seconds
// to join 50,000 rows of each side, because statistics are old during a resync.
func (s *IngestStore) compareWorkspaces(
	ctx context.Context, j *ingest.Judgement, deployments map[objectName]deployment,
) error {
	rows, err := s.tx.Query(ctx, `
		select id, namespace, name, applied_uid, applied_revision from workspaces
		where agent_id = $1 and actual_state <> 'terminated'`, j.Resync.AgentID)
	if err != nil {
		return err //nolint:wrapcheck // Judge wraps it
	}
	var (
		id      uuid.UUID
		name    objectName
		applied workspace.AppliedDeployment
	)
	active := map[uuid.UUID]struct{}{}
	scan := []any{&id, &name.namespace, &name.name, &applied.UID, &applied.Revision}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		active[id] = struct{}{}
		if d, exists := deployments[name]; !exists || applied.ReplacedBy(d.ExistingDeployment) {
			j.Findings.Differing = append(j.Findings.Differing, id)
		}
		return nil
	})
	if err != nil {
		return err //nolint:wrapcheck // Judge wraps it
	}
	for name, d := range deployments {
		if _, isActive := active[d.workspaceID]; !isActive && d.workspaceID != uuid.Nil {
			key := ingest.ObjectKey{
				AgentID: j.Resync.AgentID, Kind: ingest.KindDeployment, Namespace: name.namespace, Name: name.name,
			}
			j.Findings.Unowned = append(j.Findings.Unowned, key)
		}
	}
	return nil
}

// lists is a common table expression with the listed version of each kind. covered is true for objects whose version is
// not above it. listed returns their arguments $1 to $4.
const (
	lists = `lists as materialized (
		select kind, version::numeric as listed from unnest($3::text[], $4::text[]) as l (kind, version))`
	covered = `(l.listed is not null and (o.epoch < $2 or o.epoch = $2 and o.resource_version <= l.listed))`
)

// listed returns agent, epoch, kinds of the lists and their versions.
func listed(r ingest.EndedResync) []any {
	kinds, versions := make([]string, 0, len(r.Listed)), make([]string, 0, len(r.Listed))
	for kind, version := range r.Listed {
		kinds, versions = append(kinds, kind), append(versions, version)
	}
	return []any{r.AgentID, r.Epoch, kinds, versions}
}

// names returns kinds, namespaces and names of objects.
func names(keys []ingest.ObjectKey) (kinds, namespaces, names []string) {
	for _, k := range keys {
		kinds, namespaces, names = append(kinds, k.Kind), append(namespaces, k.Namespace), append(names, k.Name)
	}
	return kinds, namespaces, names
}

// RemoveDeleted implements ingest.ResyncStore.
func (s *IngestStore) RemoveDeleted(ctx context.Context, r ingest.EndedResync, objects []ingest.ObjectKey) error {
	if len(objects) == 0 {
		return nil
	}
	kinds, namespaces, names := names(objects)
	_, err := s.tx.Exec(ctx, `
		with `+lists+`
		delete from observed_objects o
		using unnest($5::text[], $6::text[], $7::text[]) as n (kind, namespace, name) join lists l using (kind)
		where o.agent_id = $1 and (o.kind, o.namespace, o.name) = (n.kind, n.namespace, n.name)
			and o.deleted and `+covered, append(listed(r), kinds, namespaces, names)...)
	if err != nil {
		return fmt.Errorf("remove %d deleted objects of agent %d: %w", len(objects), r.AgentID, err)
	}
	return nil
}

// MarkAbsent implements ingest.ResyncStore.
func (s *IngestStore) MarkAbsent(
	ctx context.Context, r ingest.EndedResync, objects []ingest.AbsentObject,
) ([]ingest.ObjectChange, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	keys := make([]ingest.ObjectKey, len(objects))
	for i, o := range objects {
		keys[i] = o.Key
	}
	kinds, namespaces, names := names(keys)
	rows, err := s.tx.Query(ctx, `
		with `+lists+`
		update observed_objects o set deleted = true
		from unnest($5::text[], $6::text[], $7::text[]) as n (kind, namespace, name) join lists l using (kind)
		where o.agent_id = $1 and (o.kind, o.namespace, o.name) = (n.kind, n.namespace, n.name)
			and not o.deleted and `+covered+`
		returning o.kind, o.namespace, o.name, o.uid, o.workspace_id`, append(listed(r), kinds, namespaces, names)...)
	if err != nil {
		return nil, fmt.Errorf("mark %d absent objects of agent %d: %w", len(objects), r.AgentID, err)
	}
	absent, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.ObjectChange, error) {
		c := ingest.ObjectChange{Key: ingest.ObjectKey{AgentID: r.AgentID}, Deleted: true, Existed: true}
		var id *uuid.UUID
		err := row.Scan(&c.Key.Kind, &c.Key.Namespace, &c.Key.Name, &c.UID, &id)
		c.UIDBefore, c.WorkspaceID, c.WorkspaceIDBefore = c.UID, fromNullable(id), fromNullable(id)
		return c, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("mark %d absent objects of agent %d: %w", len(objects), r.AgentID, err)
	}
	return absent, nil
}

// DeploymentsOfTerminated implements ingest.ResyncStore. The dispatcher's clock may differ from the watcher's,
// so a termination less than a minute before the resync does not count.
func (s *IngestStore) DeploymentsOfTerminated(
	ctx context.Context, r ingest.EndedResync, deployments []ingest.ObjectKey,
) ([]ingest.FoundOrphan, error) {
	if len(deployments) == 0 {
		return nil, nil
	}
	_, namespaces, names := names(deployments)
	rows, err := s.tx.Query(ctx, `
		select o.uid, o.workspace_id, o.namespace, o.name
		from unnest($2::text[], $3::text[]) as n (namespace, name)
			join observed_objects o on o.agent_id = $1 and o.kind = 'deployment' and not o.deleted
				and (o.namespace, o.name) = (n.namespace, n.name)
			join workspaces w on w.id = o.workspace_id and w.agent_id = o.agent_id and w.actual_state = 'terminated'
				and w.applied_at < $4
		order by o.namespace, o.name`, r.AgentID, namespaces, names, r.Begun.Add(-time.Minute))
	if err != nil {
		return nil, fmt.Errorf("read the Deployments of terminated workspaces of agent %d: %w", r.AgentID, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ingest.FoundOrphan, error) {
		o := ingest.FoundOrphan{
			Orphan: orphan.Orphan{AgentID: r.AgentID, SeenAt: r.Ended}, ClusterUID: r.ClusterUID,
		}
		var id uuid.UUID
		err := row.Scan(&o.UID, &id, &o.Namespace, &o.Name)
		o.Label = id.String()
		return o, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("read the Deployments of terminated workspaces of agent %d: %w", r.AgentID, err)
	}
	return found, nil
}
