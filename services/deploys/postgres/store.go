package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/services/deploys/roster"
)

// Store keeps what is concluded. The zero value is ready.
type Store struct {
	// Silent does not notify of changes: for a rebuild.
	Silent bool
}

// Ask is what a batch needs to be read.
type Ask struct {
	// Agents are read all.
	Agents bool
	// Workloads by id.
	Workloads []uuid.UUID
	// Environments by id.
	Environments []uuid.UUID
	// Reporters by agent, and Claims by cluster.
	Reporters []int64
	Claims    []string
	// Of these clusters, everything that wakes at Until or before.
	Clusters []string
	Until    time.Time
}

// Reading is what was read.
type Reading struct {
	// Batches counts the transactions of the reader, this one included. It is 0 when it was not asked for.
	Batches      int64
	Agents       []roster.Agent
	Workloads    []Record
	Environments []Record
	Reporters    []roster.Reporter
	// Claims of a cluster are in the order in which they were made.
	Claims []roster.Claim
}

const (
	recordColumns = `select id, cluster_uid, agent_id, %s, coalesce(wake_at, '0001-01-01'), state, told from %s where `
	agentColumns  = `select agent_id, cluster_uid, epoch, coalesce(ticked_at, '0001-01-01'), resync_id, resync_open, resync_expected, resync_versions,
		coalesce(resync_at, '0001-01-01'), selection, selection_complete, coalesce(complete_at, '0001-01-01'), listed_versions, coalesce(listed_at, '0001-01-01') from agents`
)

// Begin begins a batch: it counts it, and reads. The transaction will not wait for the disk.
func (s *Store) Begin(ctx context.Context, tx pgx.Tx, ask Ask) (Reading, error) {
	var out Reading
	var b pgx.Batch
	b.Queue(`set local synchronous_commit = off`)
	b.Queue(`update intake set batches = batches + 1 returning batches`).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Batches) })
	queue(&b, ask, &out)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return Reading{}, fmt.Errorf("read what is known: %w", err)
	}
	return out, nil
}

// Read reads.
func (s *Store) Read(ctx context.Context, tx pgx.Tx, ask Ask) (Reading, error) {
	var out Reading
	var b pgx.Batch
	queue(&b, ask, &out)
	if b.Len() == 0 {
		return out, nil
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return Reading{}, fmt.Errorf("read what is known: %w", err)
	}
	return out, nil
}

func queue(b *pgx.Batch, ask Ask, out *Reading) {
	workloads, environments := fmt.Sprintf(recordColumns, "present", "workloads"), fmt.Sprintf(recordColumns, "true", "environments")
	if ask.Agents {
		b.Queue(agentColumns).Query(func(rows pgx.Rows) (err error) {
			out.Agents, err = pgx.CollectRows(rows, scanAgent)
			return err //nolint:wrapcheck // Begin says of what
		})
	}
	queueClaims(b, ask, out)
	if len(ask.Workloads) > 0 {
		b.Queue(workloads+`id = any($1)`, ask.Workloads).Query(into(&out.Workloads))
	}
	if len(ask.Environments) > 0 {
		b.Queue(environments+`id = any($1)`, ask.Environments).Query(into(&out.Environments))
	}
	if len(ask.Clusters) > 0 {
		b.Queue(workloads+`cluster_uid = any($1) and wake_at <= $2`, ask.Clusters, ask.Until).Query(into(&out.Workloads))
		b.Queue(environments+`cluster_uid = any($1) and wake_at <= $2`, ask.Clusters, ask.Until).Query(into(&out.Environments))
	}
}

func into(records *[]Record) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scanRecord)
		*records = append(*records, found...)
		return err //nolint:wrapcheck // the caller says of what
	}
}

func scanRecord(row pgx.CollectableRow) (Record, error) {
	var r Record
	err := row.Scan(&r.ID, &r.ClusterUID, &r.AgentID, &r.Present, &r.WakeAt, &r.State, &r.Told)
	r.WakeAt = zeroed(r.WakeAt)
	return r, err //nolint:wrapcheck // the caller says of what
}

func scanAgent(row pgx.CollectableRow) (roster.Agent, error) {
	var a roster.Agent
	err := row.Scan(&a.ID, &a.ClusterUID, &a.Epoch, &a.TickedAt, &a.ResyncID, &a.Open, &a.Expected, &a.Versions, &a.ResyncAt, &a.Selection, &a.Complete, &a.CompleteAt, &a.Listed, &a.ListedAt)
	a.TickedAt, a.ResyncAt, a.CompleteAt, a.ListedAt = zeroed(a.TickedAt), zeroed(a.ResyncAt), zeroed(a.CompleteAt), zeroed(a.ListedAt)
	return a, err //nolint:wrapcheck // the caller says of what
}

// zeroed is the time in UTC, its zero value for a time that is none.
func zeroed(t time.Time) time.Time {
	if t.Year() <= 1 {
		return time.Time{}
	}
	return t.UTC()
}

// nullable is nil for the zero time.
func nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Resynced is what is stored of a full resync that ends.
type Resynced struct {
	// Members that came.
	Members int64
	// Absent are workloads of the agents that are present and were not members.
	Absent []Record
	// Came are those of the workloads asked about that were members.
	Came map[uuid.UUID]bool
}

// Resynced reads what came in a full resync of an agent, and which workloads of the agents in a cluster did not, but those named.
func (s *Store) Resynced(ctx context.Context, tx pgx.Tx, agentID int64, clusterUID string, agents []int64, named []uuid.UUID) (Resynced, error) {
	out := Resynced{Came: map[uuid.UUID]bool{}}
	var b pgx.Batch
	b.Queue(`select count(*) from resync_members where agent_id = $1`, agentID).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Members) })
	b.Queue(fmt.Sprintf(recordColumns, "present", "workloads")+`present and agent_id = any($2) and cluster_uid = $3 and id <> all($4)
		and not exists (select from resync_members m where m.agent_id = $1 and m.workload = workloads.id)`, agentID, agents, clusterUID, named).Query(into(&out.Absent))
	b.Queue(`select workload from resync_members where agent_id = $1 and workload = any($2)`, agentID, named).Query(func(rows pgx.Rows) error {
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		for _, id := range ids {
			out.Came[id] = true
		}
		return err //nolint:wrapcheck // Resynced says of what
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return Resynced{}, fmt.Errorf("read what came in the full resync of agent %d: %w", agentID, err)
	}
	return out, nil
}

// resyncsKept is how long it is known that a full resync was taken in: longer than the stream keeps what it said.
const resyncsKept = 45 * 24 * time.Hour

// BeginResync notes that a full resync of an agent began, and forgets what came in the one before. It returns false when it was noted before: it came twice, or the
// stream is read again.
func (s *Store) BeginResync(ctx context.Context, tx pgx.Tx, agentID int64, resyncID string, begunAt time.Time) (bool, error) {
	var b pgx.Batch
	begun := false
	b.Queue(`insert into resyncs (agent_id, resync_id, begun_at) values ($1, $2, $3) on conflict do nothing`, agentID, resyncID, begunAt).
		Exec(func(tag pgconn.CommandTag) error {
			begun = tag.RowsAffected() == 1
			return nil
		})
	b.Queue(`delete from resyncs where agent_id = $1 and begun_at < $2`, agentID, begunAt.Add(-resyncsKept))
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return false, fmt.Errorf("begin full resync %s of agent %d: %w", resyncID, agentID, err)
	}
	if !begun {
		return false, nil
	}
	return true, s.ForgetMembers(ctx, tx, agentID)
}

// ForgetMembers forgets what came in an agent's full resync.
func (s *Store) ForgetMembers(ctx context.Context, tx pgx.Tx, agentID int64) error {
	if _, err := tx.Exec(ctx, `delete from resync_members where agent_id = $1`, agentID); err != nil {
		return fmt.Errorf("forget the members of the full resync of agent %d: %w", agentID, err)
	}
	return nil
}

// ErrNoFact says that there is no such fact.
var ErrNoFact = errors.New("there is no such fact")
