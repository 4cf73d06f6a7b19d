package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/rollout"
)

// Channel of the notifications with ids of changed rollouts.
const Channel = "deploys_rollouts"

// Rows are the rows to write. Each id occurs once.
type Rows struct {
	Agents       []agents.Agent
	Workloads    []*ingest.Record[rollout.State]
	Environments []*ingest.Record[environment.State]
	Members      []ingest.Member
	Facts        []Fact
	Rollouts     []history.Rollout
}

// Save writes all rows in one round trip.
func (s *Store) Save(ctx context.Context, tx pgx.Tx, w Rows) error {
	var b pgx.Batch
	s.queueAgents(&b, w.Agents)
	queueMembers(&b, w.Members)
	if err := queueWorkloads(&b, w.Workloads); err != nil {
		return err
	}
	if err := queueEnvironments(&b, w.Environments); err != nil {
		return err
	}
	s.queueFacts(&b, w.Facts)
	if err := s.queueRollouts(&b, w.Rollouts); err != nil {
		return err
	}
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("save a batch: %w", err)
	}
	return nil
}

func (s *Store) queueAgents(b *pgx.Batch, agents []agents.Agent) {
	for _, a := range agents {
		b.Queue(`
			insert into agents (agent_id, cluster_uid, epoch, ticked_at, resync_id, resync_open, resync_expected,
				resync_versions, resync_at, selection, selection_complete,
				listed_versions, listed_at, complete_at, workload_rows, environment_rows, member_rows, clusters)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
			on conflict (agent_id) do update set cluster_uid = excluded.cluster_uid, epoch = excluded.epoch,
				ticked_at = excluded.ticked_at,
				resync_id = excluded.resync_id, resync_open = excluded.resync_open,
				resync_expected = excluded.resync_expected, resync_versions = excluded.resync_versions,
				resync_at = excluded.resync_at, selection = excluded.selection, selection_complete = excluded.selection_complete,
				listed_versions = excluded.listed_versions, listed_at = excluded.listed_at, complete_at = excluded.complete_at,
				workload_rows = excluded.workload_rows, environment_rows = excluded.environment_rows,
				member_rows = excluded.member_rows, clusters = excluded.clusters`,
			a.ID, a.ClusterUID, a.Epoch, toColumn(a.TickedAt), a.ResyncID, a.ResyncOpen, a.ResyncExpected,
			a.ResyncVersions, toColumn(a.ResyncAt), a.Selection, a.SelectionComplete,
			a.ListedVersions, toColumn(a.ListedAt), toColumn(a.CompleteSince),
			a.Rows.Workloads, a.Rows.Environments, a.Rows.Members, a.Rows.Clusters)
	}
}

func queueMembers(b *pgx.Batch, members []ingest.Member) {
	if len(members) == 0 {
		return
	}
	n := len(members)
	agents, objects, workloads := make([]int64, n), make([]string, n), make([]*uuid.UUID, n)
	for i := range members {
		agents[i], objects[i] = members[i].AgentID, members[i].Object
		if members[i].WorkloadID != uuid.Nil {
			workloads[i] = &members[i].WorkloadID
		}
	}
	b.Queue(`
		insert into resync_members (agent_id, object, workload)
		select agent_id, object, workload
		from unnest($1::bigint[], $2::text[], $3::uuid[]) as member (agent_id, object, workload)
		on conflict do nothing`, agents, objects, workloads)
}

func queueWorkloads(b *pgx.Batch, records []*ingest.Record[rollout.State]) error {
	if len(records) == 0 {
		return nil
	}
	n := len(records)
	ids, clusters, agentIDs, wakes := make([]uuid.UUID, n), make([]string, n), make([]int64, n), make([]*time.Time, n)
	states, positions, present := make([]string, n), make([]int64, n), make([]bool, n)
	for i := range records {
		r := records[i]
		ids[i], clusters[i], agentIDs[i], wakes[i] = r.ID, r.State.Key.ClusterUID, r.AgentID, toColumn(r.State.Wake())
		positions[i], present[i] = r.Position, r.State.Expected()
		state, err := json.Marshal(r.State)
		if err != nil {
			return fmt.Errorf("encode the state of %s: %w", r.State.Key, err)
		}
		states[i] = string(state)
	}
	b.Queue(`
		insert into workloads (id, cluster_uid, agent_id, wake_at, state, told, present)
		select id, cluster_uid, agent_id, wake_at, state, told, present
		from unnest($1::uuid[], $2::text[], $3::bigint[], $4::timestamptz[], $5::text[], $6::bigint[], $7::boolean[])
			as workload (id, cluster_uid, agent_id, wake_at, state, told, present)
		on conflict (id) do update set agent_id = excluded.agent_id, wake_at = excluded.wake_at,
			state = excluded.state, told = excluded.told, present = excluded.present`,
		ids, clusters, agentIDs, wakes, states, positions, present)
	return nil
}

func queueEnvironments(b *pgx.Batch, records []*ingest.Record[environment.State]) error {
	if len(records) == 0 {
		return nil
	}
	n := len(records)
	ids, clusters, agentIDs, wakes := make([]uuid.UUID, n), make([]string, n), make([]int64, n), make([]*time.Time, n)
	states, positions := make([]string, n), make([]int64, n)
	for i := range records {
		r := records[i]
		ids[i], clusters[i], agentIDs[i], wakes[i] = r.ID, r.State.Key.ClusterUID, r.AgentID, toColumn(r.State.Wake())
		positions[i] = r.Position
		state, err := json.Marshal(r.State)
		if err != nil {
			return fmt.Errorf("encode the state of %s: %w", r.State.Key, err)
		}
		states[i] = string(state)
	}
	b.Queue(`
		insert into environments (id, cluster_uid, agent_id, wake_at, state, told)
		select id, cluster_uid, agent_id, wake_at, state, told
		from unnest($1::uuid[], $2::text[], $3::bigint[], $4::timestamptz[], $5::text[], $6::bigint[])
			as environment (id, cluster_uid, agent_id, wake_at, state, told)
		on conflict (id) do update set agent_id = excluded.agent_id, wake_at = excluded.wake_at,
			state = excluded.state, told = excluded.told`,
		ids, clusters, agentIDs, wakes, states, positions)
	return nil
}

func (s *Store) queueFacts(b *pgx.Batch, facts []Fact) {
	if len(facts) == 0 {
		return
	}
	n := len(facts)
	ids, workloads, sequences, names, rollouts := make([]string, n), make([]uuid.UUID, n), make([]int64, n),
		make([]string, n), make([]string, n)
	occurred, observed, data, positions := make([]time.Time, n), make([]time.Time, n), make([]string, n), make([]int64, n)
	for i := range facts {
		f := &facts[i]
		ids[i], workloads[i], sequences[i], names[i], rollouts[i] = f.ID, f.Workload, f.Sequence, f.Fact, f.RolloutID
		occurred[i], observed[i], data[i], positions[i] = f.OccurredAt, f.ObservedAt, f.Data, f.StreamSequence
	}
	b.Queue(`
		insert into facts (id, workload, sequence, fact, rollout_id, occurred_at, observed_at, data, stream_sequence)
		select id, workload, sequence, fact, rollout_id, occurred_at, observed_at, data, stream_sequence
		from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::timestamptz[],
			$7::timestamptz[], $8::text[], $9::bigint[])
			as f (id, workload, sequence, fact, rollout_id, occurred_at, observed_at, data, stream_sequence)
		on conflict (id) do nothing`, ids, workloads, sequences, names, rollouts, occurred, observed, data, positions)
	if !s.Silent {
		b.Queue(`select pg_notify('`+Channel+`', f.id) from unnest($1::text[], $2::text[]) as f (id, fact)
			where f.fact = any($3)`, ids, names, scaleFacts())
	}
}

func (s *Store) queueRollouts(b *pgx.Batch, rollouts []history.Rollout) error {
	if len(rollouts) == 0 {
		return nil
	}
	raw, err := history.MarshalRows(rollouts)
	if err != nil {
		return fmt.Errorf("encode the history: %w", err)
	}
	//nolint:unqueryvet // the row type is that of the table
	b.Queue(`
		insert into rollouts as r select * from json_populate_recordset(null::rollouts, $1)
		on conflict (id) do update set
			agent_id = excluded.agent_id, change = excluded.change, of_revision = excluded.of_revision,
			template_hash = excluded.template_hash, images = excluded.images, previous_images = excluded.previous_images,
			labels = excluded.labels, commit_sha = excluded.commit_sha, deploy_group = excluded.deploy_group,
			started_at = excluded.started_at, started_observed_at = excluded.started_observed_at,
			replicas_at_start = excluded.replicas_at_start,
			scaled_during = excluded.scaled_during, last_sequence = excluded.last_sequence, updated_at = excluded.updated_at,
			first_sequence = coalesce(excluded.first_sequence, r.first_sequence),
			state = coalesce(excluded.state, r.state),
			ended_at = coalesce(excluded.ended_at, r.ended_at),
			ended_observed_at = coalesce(excluded.ended_observed_at, r.ended_observed_at),
			drained_at = coalesce(excluded.drained_at, r.drained_at),
			duration_ms = coalesce(excluded.duration_ms, r.duration_ms),
			counts = coalesce(excluded.counts, r.counts),
			stalled = coalesce(excluded.stalled, r.stalled),
			blocked = coalesce(excluded.blocked, r.blocked),
			paused = coalesce(excluded.paused, r.paused),
			troubled = coalesce(excluded.troubled, r.troubled),
			reconstructed = coalesce(excluded.reconstructed, r.reconstructed),
			reason = coalesce(excluded.reason, r.reason),
			message = coalesce(excluded.message, r.message),
			superseded_by = coalesce(excluded.superseded_by, r.superseded_by)`,
		json.RawMessage(raw))
	if !s.Silent {
		ids := make([]string, len(rollouts))
		for i := range rollouts {
			ids[i] = rollouts[i].ID
		}
		b.Queue(`select pg_notify('`+Channel+`', id) from unnest($1::text[]) as id`, ids)
	}
	return nil
}
