package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/rollout"
)

const (
	reporterColumns = `select agent_id, project_id, since from reporters `
	claimColumns    = `select cluster_uid, since, project_id, agent_id, user_id, reason, claimed_at from claims `
)

func scanReporter(row pgx.CollectableRow) (r ownership.Reporter, err error) {
	err = row.Scan(&r.AgentID, &r.ProjectID, &r.Since)
	return r, err //nolint:wrapcheck // the caller wraps it
}

func scanClaim(row pgx.CollectableRow) (c ownership.Claim, err error) {
	err = row.Scan(&c.ClusterUID, &c.Since, &c.ProjectID, &c.AgentID, &c.UserID, &c.Reason, &c.At)
	c.At = c.At.UTC()
	return c, err //nolint:wrapcheck // the caller wraps it
}

// Claim stores new reporters and claims. Call it in the transaction of the batch that created them.
func (s *Store) Claim(ctx context.Context, tx pgx.Tx, reporters []ownership.Reporter, claims []ownership.Claim) error {
	var b pgx.Batch
	for _, r := range reporters {
		b.Queue(`insert into reporters (agent_id, project_id, since) values ($1, $2, $3)`, r.AgentID, r.ProjectID, r.Since)
	}
	for _, c := range claims {
		b.Queue(`insert into claims (cluster_uid, since, project_id, agent_id, user_id, reason)
			values ($1, $2, $3, $4, $5, $6)`,
			c.ClusterUID, c.Since, c.ProjectID, c.AgentID, c.UserID, c.Reason)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("store claims: %w", err)
	}
	return nil
}

func clusterWorkloads(ctx context.Context, tx pgx.Tx, clusterUID string) ([]*ingest.Record[rollout.State], error) {
	rows, err := tx.Query(ctx, recordColumns+`workloads where cluster_uid = $1`, clusterUID)
	if err != nil {
		return nil, fmt.Errorf("read the workloads of cluster %q: %w", clusterUID, err)
	}
	found, err := pgx.CollectRows(rows, scanRecord[rollout.State])
	if err != nil {
		return nil, fmt.Errorf("read the workloads of cluster %q: %w", clusterUID, err)
	}
	return found, nil
}

// Clusters reads the claims of clusters.
type Clusters struct {
	Pool *pgxpool.Pool
}

// Cluster is a cluster with at least one claim.
type Cluster struct {
	// Claims, oldest first. The last one is the current one.
	Claims []ownership.Claim
	// Agents of the owning project that report the cluster.
	Agents []int64
	// Workloads is the number of present workloads, Running the number of rollouts in flight.
	Workloads, Running int64
}

// Claim returns the current claim.
func (c *Cluster) Claim() ownership.Claim { return c.Claims[len(c.Claims)-1] }

// List returns all clusters ordered by UID, or the one with the given UID.
func (s *Clusters) List(ctx context.Context, clusterUID string) ([]Cluster, error) {
	var b pgx.Batch
	var all []Cluster
	at := map[string]int{}
	b.Queue(claimColumns+`where $1 = '' or cluster_uid = $1 order by cluster_uid, number`,
		clusterUID).Query(func(rows pgx.Rows) error {
		claims, err := pgx.CollectRows(rows, scanClaim)
		for _, c := range claims {
			n, known := at[c.ClusterUID]
			if !known {
				n = len(all)
				at[c.ClusterUID], all = n, append(all, Cluster{})
			}
			all[n].Claims = append(all[n].Claims, c)
		}
		return err //nolint:wrapcheck // wrapped below
	})
	b.Queue(`select a.cluster_uid, r.project_id, a.agent_id from agents a join reporters r using (agent_id)
		where $1 = '' or a.cluster_uid = $1 order by a.agent_id`, clusterUID).
		Query(func(rows pgx.Rows) error {
			var cluster string
			var project, agent int64
			_, err := pgx.ForEachRow(rows, []any{&cluster, &project, &agent}, func() error {
				if n, known := at[cluster]; known && all[n].Claim().ProjectID == project {
					all[n].Agents = append(all[n].Agents, agent)
				}
				return nil
			})
			return err //nolint:wrapcheck // wrapped below
		})
	count := func(statement string, field func(*Cluster) *int64, arguments ...any) {
		b.Queue(statement, append([]any{clusterUID}, arguments...)...).Query(func(rows pgx.Rows) error {
			var cluster string
			var counted int64
			_, err := pgx.ForEachRow(rows, []any{&cluster, &counted}, func() error {
				if n, known := at[cluster]; known {
					*field(&all[n]) = counted
				}
				return nil
			})
			return err //nolint:wrapcheck // wrapped below
		})
	}
	count(`select cluster_uid, count(*) from workloads where present and ($1 = '' or cluster_uid = $1) group by 1`,
		func(c *Cluster) *int64 { return &c.Workloads })
	count(`select cluster_uid, count(*) from rollouts where state = $2 and ($1 = '' or cluster_uid = $1) group by 1`,
		func(c *Cluster) *int64 { return &c.Running }, history.Running)
	if err := s.Pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	return all, nil
}

// Reporters returns the agents that have reported, ordered by id.
func (s *Clusters) Reporters(ctx context.Context) ([]ownership.Reporter, error) {
	rows, err := s.Pool.Query(ctx, reporterColumns+`order by agent_id`)
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanReporter)
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	return found, nil
}

// Ended returns the number of rollouts that ended as unknown when the cluster was released at this time.
func (s *Clusters) Ended(ctx context.Context, clusterUID string, released time.Time) (int64, error) {
	var ended int64
	err := s.Pool.QueryRow(ctx,
		`select count(*) from rollouts where cluster_uid = $1 and state = $2 and ended_observed_at = $3`, clusterUID,
		history.Unknown, released).Scan(&ended)
	if err != nil {
		return 0, fmt.Errorf("count the ended rollouts of cluster %q: %w", clusterUID, err)
	}
	return ended, nil
}
