package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// KnowsResync tells whether the begin of a resync was taken in before: it came twice, or the stream is read again.
func (s *Observations) KnowsResync(ctx context.Context, tx pgx.Tx, agentID int64, resyncID string) (bool, error) {
	var known bool
	err := tx.QueryRow(ctx, `select exists (select from resyncs where agent_id = $1 and resync_id = $2)`, agentID, resyncID).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("look for resync %s of agent %d: %w", resyncID, agentID, err)
	}
	return known, nil
}

// BeginResync notes a full resync that begins, in the cluster's epoch. Another one of the agent that has not ended never will.
func (s *Observations) BeginResync(ctx context.Context, tx pgx.Tx, cluster domain.Cluster, begun events.ObservedResyncBegun) error {
	listed := make(domain.Versions, len(begun.ListVersions))
	for _, v := range begun.ListVersions {
		listed[v.Kind] = v.ResourceVersion
	}
	_, err := tx.Exec(ctx, `
		insert into resyncs (agent_id, resync_id, cluster_uid, epoch, nonce, cause, list_versions, expected, begun_at)
		values ($1, $2, $3, $4, nullif($5, ''), $6, $7, $8, $9)`,
		cluster.AgentID, begun.ResyncID, begun.ClusterUID, cluster.Epoch, begun.Nonce, begun.Cause, listed, begun.Count, begun.ObservedAt)
	if err != nil {
		return fmt.Errorf("begin resync %s of agent %d: %w", begun.ResyncID, cluster.AgentID, err)
	}
	_, err = tx.Exec(ctx, `update resyncs set outcome = 'incomplete' where agent_id = $1 and resync_id <> $2 and outcome = 'open'`, cluster.AgentID, begun.ResyncID)
	if err != nil {
		return fmt.Errorf("give up the resyncs of agent %d before %s: %w", cluster.AgentID, begun.ResyncID, err)
	}
	return nil
}

// Ended is what a full resync that has ended brought about.
type Ended struct {
	// Judged is that it came in whole, so that what it lacks is gone. The rest is empty otherwise.
	Judged bool
	// Listed is when it began.
	Listed time.Time
	// Absent is what was there and is not.
	Absent []Altered
	// Missing is the workspaces that the cluster has no Deployment of, or another one than the dispatcher has left.
	Missing []uuid.UUID
	// Orphans are Deployments of workspaces that are terminated.
	Orphans []OrphanSeen
}

// EndResync takes in that all members of a resync were sent. If all are stored, objects that it lacks are judged deleted: those at or below the version
// that was listed, so that what came up meanwhile is left alone. What was deleted before is forgotten then, except
// Deployments. A resync that is not open, or of another cluster, changes nothing.
func (s *Observations) EndResync(ctx context.Context, tx pgx.Tx, cluster domain.Cluster, ended events.ObservedResyncEnded) (Ended, error) {
	var out Ended
	var expected, received int64
	err := tx.QueryRow(ctx, `
		select begun_at, expected, (select count(*) from observed_objects o where o.agent_id = r.agent_id and o.resync_id = r.resync_id)
		from resyncs r where agent_id = $1 and resync_id = $2 and cluster_uid = $3 and epoch = $4 and outcome = 'open'`,
		cluster.AgentID, ended.ResyncID, ended.ClusterUID, cluster.Epoch).Scan(&out.Listed, &expected, &received)
	if errors.Is(err, pgx.ErrNoRows) {
		return Ended{}, nil
	}
	if err != nil {
		return Ended{}, fmt.Errorf("end resync %s of agent %d: %w", ended.ResyncID, cluster.AgentID, err)
	}
	out.Listed = out.Listed.UTC()
	out.Judged = received == expected && int64(ended.Count) == expected
	outcome := "incomplete"
	if out.Judged {
		outcome = "complete"
	}
	_, err = tx.Exec(ctx, `update resyncs set outcome = $3, received = $4, ended_at = $5 where agent_id = $1 and resync_id = $2`,
		cluster.AgentID, ended.ResyncID, outcome, received, ended.ObservedAt)
	if err != nil {
		return Ended{}, fmt.Errorf("end resync %s of agent %d: %w", ended.ResyncID, cluster.AgentID, err)
	}
	if !out.Judged {
		return out, nil
	}
	if out.Absent, err = s.judge(ctx, tx, cluster, ended.ResyncID); err != nil {
		return Ended{}, fmt.Errorf("judge absence by resync %s of agent %d: %w", ended.ResyncID, cluster.AgentID, err)
	}
	if out.Missing, err = s.missing(ctx, tx, cluster.AgentID); err != nil {
		return Ended{}, fmt.Errorf("judge absence by resync %s of agent %d: %w", ended.ResyncID, cluster.AgentID, err)
	}
	if out.Orphans, err = s.revenants(ctx, tx, cluster, ended.ResyncID, ended.ObservedAt); err != nil {
		return Ended{}, fmt.Errorf("judge by resync %s of agent %d: %w", ended.ResyncID, cluster.AgentID, err)
	}
	return out, nil
}

// listedBelow joins an object with what a resync says of its kind, and tells those that it would have listed.
const listedBelow = `
	where r.agent_id = $1 and r.resync_id = $2 and o.agent_id = r.agent_id and o.kind = l.kind
		and (o.epoch < r.epoch or o.epoch = r.epoch and o.resource_version <= l.version::numeric)`

func (s *Observations) judge(ctx context.Context, tx pgx.Tx, cluster domain.Cluster, resyncID string) ([]Altered, error) {
	_, err := tx.Exec(ctx, `
		delete from observed_objects o using resyncs r, jsonb_each_text(r.list_versions) as l (kind, version) `+listedBelow+` and o.deleted and o.kind <> 'deployment'`, cluster.AgentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("forget what was deleted: %w", err)
	}
	rows, err := tx.Query(ctx, `
		update observed_objects o set deleted = true from resyncs r, jsonb_each_text(r.list_versions) as l (kind, version) `+listedBelow+`
		and not o.deleted and o.resync_id is distinct from r.resync_id
		returning o.kind, o.namespace, o.name, o.uid, o.workspace_id`, cluster.AgentID, resyncID)
	if err != nil {
		return nil, fmt.Errorf("mark what is absent: %w", err)
	}
	absent, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Altered, error) {
		a := Altered{Key: ObjectKey{AgentID: cluster.AgentID}, Deleted: true, Known: true}
		var workspace *uuid.UUID
		err := row.Scan(&a.Key.Kind, &a.Key.Namespace, &a.Key.Name, &a.UID, &workspace)
		a.UIDBefore, a.WorkspaceID, a.WorkspaceIDBefore = a.UID, fromNullable(workspace), fromNullable(workspace)
		return a, err //nolint:wrapcheck // EndResync says what it asked for
	})
	if err != nil {
		return nil, fmt.Errorf("mark what is absent: %w", err)
	}
	return absent, nil
}

func (s *Observations) missing(ctx context.Context, tx pgx.Tx, agentID int64) ([]uuid.UUID, error) {
	// Grouping is never worked out row against row, as a join is when PostgreSQL last looked at its tables before the agent was there.
	// The revision is found as text: no string of the JSON can hold this, since its quotes would be escaped, and to parse all of them takes longer than all else here.
	rows, err := tx.Query(ctx, `
		select (array_agg(id) filter (where id is not null))[1] from (
			select namespace, name, id, applied_uid as uid, applied_revision::text as revision, false as there
			from workspaces where agent_id = $1 and actual_state <> 'terminated'
			union all
			select namespace, name, null, uid, substring(data from '"' || $2 || '":"([0-9]+)"'), true
			from observed_objects where agent_id = $1 and kind = 'deployment' and not deleted
		) as both_sides group by namespace, name
		having count(id) > 0 and (not bool_or(there)
			or max(uid) filter (where not there) <> '' and (count(distinct uid) > 1 or count(revision) < 2 or count(distinct revision) > 1))`,
		agentID, domain.AnnotationDesiredRevision)
	if err != nil {
		return nil, fmt.Errorf("look for workspaces without a Deployment: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("look for workspaces without a Deployment: %w", err)
	}
	return ids, nil
}
