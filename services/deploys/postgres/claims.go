package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Reporter is an agent that has told something.
type Reporter struct {
	AgentID, ProjectID int64
	// Since is the position on the stream OBSERVED of the first message of it that was taken in.
	Since uint64
}

// Claim says whose a cluster is.
type Claim struct {
	ClusterUID string
	// Since is the position on the stream OBSERVED from which on it is so, until that of the next claim.
	Since uint64
	// ProjectID is 0 for a cluster that was released.
	ProjectID int64
	// AgentID of the agent that reported the cluster.
	AgentID int64
}

func queueClaims(b *pgx.Batch, ask Ask, out *Reading) {
	if len(ask.Reporters) > 0 {
		b.Queue(`select agent_id, project_id, since from reporters where agent_id = any($1)`, ask.Reporters).Query(func(rows pgx.Rows) (err error) {
			out.Reporters, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Reporter, err error) {
				err = row.Scan(&r.AgentID, &r.ProjectID, &r.Since)
				return r, err //nolint:wrapcheck // Begin says of what
			})
			return err //nolint:wrapcheck // Begin says of what
		})
	}
	if len(ask.Claims) > 0 {
		b.Queue(`select cluster_uid, since, project_id, agent_id from claims where cluster_uid = any($1) order by number`, ask.Claims).Query(func(rows pgx.Rows) (err error) {
			out.Claims, err = pgx.CollectRows(rows, scanClaim)
			return err //nolint:wrapcheck // Begin says of what
		})
	}
}

func scanClaim(row pgx.CollectableRow) (c Claim, err error) {
	err = row.Scan(&c.ClusterUID, &c.Since, &c.ProjectID, &c.AgentID)
	return c, err //nolint:wrapcheck // the caller says of what
}

// Claim notes agents that tell something for the first time, and whose clusters are. The transaction that takes in what they tell is the one that notes it.
func (s *Store) Claim(ctx context.Context, tx pgx.Tx, reporters []Reporter, claims []Claim) error {
	var b pgx.Batch
	for _, r := range reporters {
		b.Queue(`insert into reporters (agent_id, project_id, since) values ($1, $2, $3)`, r.AgentID, r.ProjectID, r.Since)
	}
	for _, c := range claims {
		b.Queue(`insert into claims (cluster_uid, since, project_id, agent_id) values ($1, $2, $3, $4)`, c.ClusterUID, c.Since, c.ProjectID, c.AgentID)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("note whose clusters are: %w", err)
	}
	return nil
}
