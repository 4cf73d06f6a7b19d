package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/rollout"
)

// Store reads and writes the tables. The zero value is ready to use.
type Store struct {
	// Silent sends no notifications, for a rebuild.
	Silent bool
}

const (
	recordColumns = `select id, agent_id, state, told from `
	agentColumns  = `select agent_id, cluster_uid, epoch, coalesce(ticked_at, '0001-01-01'), resync_id, resync_open,
		resync_expected, resync_versions, coalesce(resync_at, '0001-01-01'), selection, selection_complete,
		coalesce(complete_at, '0001-01-01'), listed_versions, coalesce(listed_at, '0001-01-01'),
		workload_rows, environment_rows, member_rows, clusters from agents`
)

// begin increments the batch number. It returns the number and the result of the query. The commit is asynchronous: if
// a crash of the server loses the batch, it loses the cursor's move too, and the batch is repeated.
func begin(ctx context.Context, tx pgx.Tx, q ingest.Query) (int64, ingest.Loaded, error) {
	var number int64
	var b pgx.Batch
	b.Queue(`set local synchronous_commit = off`)
	b.Queue(`update intake set batches = batches + 1 returning batches`).QueryRow(func(row pgx.Row) error {
		return row.Scan(&number)
	})
	loaded, err := load(ctx, tx, &b, q)
	return number, loaded, err
}

// load adds the query to b and sends b in one round trip.
func load(ctx context.Context, tx pgx.Tx, b *pgx.Batch, q ingest.Query) (ingest.Loaded, error) {
	var out ingest.Loaded
	if q.Agents {
		b.Queue(agentColumns).Query(collect(&out.Agents, scanAgent))
	}
	if len(q.ReporterIDs) > 0 {
		b.Queue(reporterColumns+`where agent_id = any($1)`, q.ReporterIDs).Query(collect(&out.Reporters, scanReporter))
	}
	if len(q.ClaimClusters) > 0 {
		b.Queue(claimColumns+`where cluster_uid = any($1) order by number`, q.ClaimClusters).
			Query(collect(&out.Claims, scanClaim))
	}
	workloads, environments := recordColumns+`workloads where `, recordColumns+`environments where `
	if len(q.WorkloadIDs) > 0 {
		b.Queue(workloads+`id = any($1)`, q.WorkloadIDs).Query(collect(&out.Workloads, scanRecord[rollout.State]))
	}
	if len(q.EnvironmentIDs) > 0 {
		b.Queue(environments+`id = any($1)`, q.EnvironmentIDs).
			Query(collect(&out.Environments, scanRecord[environment.State]))
	}
	if len(q.DueClusters) > 0 {
		const due = `cluster_uid = any($1) and wake_at <= $2`
		b.Queue(workloads+due, q.DueClusters, q.DueAt).Query(collect(&out.Workloads, scanRecord[rollout.State]))
		b.Queue(environments+due, q.DueClusters, q.DueAt).
			Query(collect(&out.Environments, scanRecord[environment.State]))
	}
	if b.Len() == 0 {
		return out, nil
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return ingest.Loaded{}, fmt.Errorf("load the state of a batch: %w", err)
	}
	return out, nil
}

// collect returns a callback that appends the rows to a slice.
func collect[T any](into *[]T, scan pgx.RowToFunc[T]) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scan)
		*into = append(*into, found...)
		return err //nolint:wrapcheck // the caller wraps it
	}
}

func scanRecord[S any](row pgx.CollectableRow) (*ingest.Record[S], error) {
	r := &ingest.Record[S]{Stored: true}
	var state []byte
	if err := row.Scan(&r.ID, &r.AgentID, &state, &r.Position); err != nil {
		return nil, err //nolint:wrapcheck // the caller wraps it
	}
	if err := json.Unmarshal(state, &r.State); err != nil {
		return nil, fmt.Errorf("decode state %s: %w", r.ID, err)
	}
	return r, nil
}

func scanAgent(row pgx.CollectableRow) (agents.Agent, error) {
	var a agents.Agent
	err := row.Scan(
		&a.ID, &a.ClusterUID, &a.Epoch, &a.TickedAt, &a.ResyncID, &a.ResyncOpen, &a.ResyncExpected, &a.ResyncVersions,
		&a.ResyncAt, &a.Selection, &a.SelectionComplete, &a.CompleteSince, &a.ListedVersions, &a.ListedAt,
		&a.Rows.Workloads, &a.Rows.Environments, &a.Rows.Members, &a.Rows.Clusters,
	)
	for _, t := range []*time.Time{&a.TickedAt, &a.ResyncAt, &a.CompleteSince, &a.ListedAt} {
		*t = fromColumn(*t)
	}
	return a, err //nolint:wrapcheck // the caller wraps it
}

// fromColumn returns the time in UTC; the zero time for year 1, which the queries select for null.
func fromColumn(t time.Time) time.Time {
	if t.Year() <= 1 {
		return time.Time{}
	}
	return t.UTC()
}

// toColumn returns nil, which is null, for the zero time.
func toColumn(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

const (
	// resyncRetention is how long begins of full resyncs are stored. It is longer than the stream keeps their messages.
	resyncRetention = 45 * 24 * time.Hour
	// keptResyncs is the number of begins that are stored of an agent, more than it makes in 30 days by default. An older
	// one that is read again, after a restore of the stream, counts as a new one.
	keptResyncs = 1000
)

func beginResync(ctx context.Context, tx pgx.Tx, agentID int64, resyncID string, begunAt time.Time) (bool, error) {
	var b pgx.Batch
	begun := false
	b.Queue(`insert into resyncs (agent_id, resync_id, begun_at) values ($1, $2, $3) on conflict do nothing`,
		agentID, resyncID, begunAt).Exec(func(tag pgconn.CommandTag) error {
		begun = tag.RowsAffected() == 1
		return nil
	})
	b.Queue(`delete from resyncs where agent_id = $1 and (begun_at < $2 or resync_id in (
			select resync_id from resyncs where agent_id = $1 order by begun_at desc, resync_id desc offset $3))`,
		agentID, begunAt.Add(-resyncRetention), keptResyncs)
	err := tx.SendBatch(ctx, &b).Close()
	if err == nil && begun {
		_, err = tx.Exec(ctx, `delete from resync_members where agent_id = $1`, agentID)
	}
	if err != nil {
		return false, fmt.Errorf("begin full resync %s of agent %d: %w", resyncID, agentID, err)
	}
	return begun, nil
}

// endResync implements [Batch.EndResync].
func endResync(
	ctx context.Context, tx pgx.Tx, a *agents.Agent, agentIDs []int64, touched []uuid.UUID, members []ingest.Member,
) (ingest.ResyncResult, error) {
	out := ingest.ResyncResult{Listed: map[uuid.UUID]bool{}}
	var b pgx.Batch
	queueMembers(&b, members)
	b.Queue(`select count(*) from resync_members where agent_id = $1`, a.ID).
		QueryRow(func(row pgx.Row) error { return row.Scan(&out.Members) })
	b.Queue(recordColumns+`workloads
		where present and agent_id = any($2) and cluster_uid = $3 and id <> all($4)
		and not exists (select from resync_members m where m.agent_id = $1 and m.workload = workloads.id)`,
		a.ID, agentIDs, a.ClusterUID, touched).Query(collect(&out.Absent, scanRecord[rollout.State]))
	b.Queue(`select workload from resync_members where agent_id = $1 and workload = any($2)`, a.ID, touched).
		Query(func(rows pgx.Rows) error {
			ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
			for _, id := range ids {
				out.Listed[id] = true
			}
			return err //nolint:wrapcheck // wrapped below
		})
	b.Queue(`delete from resync_members where agent_id = $1`, a.ID)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return ingest.ResyncResult{}, fmt.Errorf("end full resync %s of agent %d: %w", a.ResyncID, a.ID, err)
	}
	return out, nil
}

// ErrNoFact reports that the fact is not stored.
var ErrNoFact = errors.New("fact not found")
