package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats are statistics of rollouts.
type Stats struct {
	// ClusterUID, Namespace, Kind and Name of the workload; empty in the total.
	ClusterUID, Namespace, Kind, Name string
	AgentID                           int64

	Rollouts, Running, Completed, Superseded, Cancelled, Unknown, RolledBack int64
	// Changes are ended or failed rollouts that were neither rollbacks nor restarts. FailedChanges are the failed ones
	// among them.
	Changes, FailedChanges int64
	// Deploys are completed changes.
	Deploys int64
	// P50 and P95 of the durations of completed, observed rollouts; nil for none.
	P50, P95 *time.Duration
}

// A change failed if the next rollout was a rollback, or if it was stalled or blocked and never completed.
const statsStatement = `
	with classified as (
		select r.*, next.change = 'rolled_back' or (r.troubled and r.state in ('superseded', 'cancelled',
			'unknown')) as failed,
			r.change in ('created', 'updated') as is_change, r.state = 'completed' and r.reconstructed is not true as timed
		from rollouts r
		left join lateral (
			select n.change from rollouts n where n.workload = r.workload and n.first_sequence > r.first_sequence
			order by n.first_sequence limit 1
		) next on true
		where %s
	)
	select coalesce(max(cluster_uid), ''), coalesce(max(namespace), ''), coalesce(max(kind), ''),
		coalesce(max(name), ''), coalesce(max(agent_id), 0), grouping(workload),
		count(*), count(*) filter (where state = 'running'), count(*) filter (where state = 'completed'),
			count(*) filter (where state = 'superseded'),
		count(*) filter (where state = 'cancelled'), count(*) filter (where state = 'unknown'),
			count(*) filter (where change = 'rolled_back'),
		count(*) filter (where is_change and (failed or state <> 'running')), count(*) filter (where is_change and failed),
		count(*) filter (where is_change and state = 'completed'),
		percentile_cont(0.5) within group (order by duration_ms) filter (where timed),
			percentile_cont(0.95) within group (order by duration_ms) filter (where timed)
	from classified group by grouping sets ((), (workload))
	order by grouping(workload) desc, count(*) desc, 1, 2, 3, 4 limit $%d`

// Stats returns statistics of the selected rollouts: the total, and those of each workload, up to a limit. The
// workloads with the most rollouts come first.
func (s *Rollouts) Stats(ctx context.Context, f RolloutFilter, workloads int) (Stats, []Stats, error) {
	c := f.conditions()
	c.arguments = append(c.arguments, workloads+1)
	rows, err := s.DB.Query(ctx, fmt.Sprintf(statsStatement, c, len(c.arguments)), c.arguments...)
	if err != nil {
		return Stats{}, nil, fmt.Errorf("compute statistics: %w", err)
	}
	var total Stats
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Stats, error) {
		var one Stats
		var all int
		var p50, p95 *float64
		err := row.Scan(&one.ClusterUID, &one.Namespace, &one.Kind, &one.Name, &one.AgentID, &all,
			&one.Rollouts, &one.Running, &one.Completed, &one.Superseded, &one.Cancelled, &one.Unknown, &one.RolledBack,
			&one.Changes, &one.FailedChanges, &one.Deploys, &p50, &p95)
		one.P50, one.P95 = milliseconds(p50), milliseconds(p95)
		if all == 1 {
			one.ClusterUID, one.Namespace, one.Kind, one.Name, one.AgentID = "", "", "", "", 0
			total = one
		}
		return one, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return Stats{}, nil, fmt.Errorf("compute statistics: %w", err)
	}
	return total, found[1:], nil // the total is the first row
}

func milliseconds(value *float64) *time.Duration {
	if value == nil {
		return nil
	}
	d := time.Duration(*value * float64(time.Millisecond)).Round(time.Millisecond)
	return &d
}
