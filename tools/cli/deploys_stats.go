package cli

import (
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/tools/board"
)

func (a *app) deploysStats() *cobra.Command {
	var filter rolloutFilter
	var workloads int32
	c := &cobra.Command{
		Use:   "stats [WORKLOAD]",
		Short: "Show duration, frequency, failure rate and rollback rate of rollouts",
		Args:  atMost("WORKLOAD"), ValidArgsFunction: a.completeWorkloads,
		Long: `Show statistics of the rollouts that started within a time, by default the last 30 days: of all, and of
each workload.

A change is a rollout that is neither a rollback nor a restart. It failed when it stalled or was blocked and did not
complete, or when the next rollout of its workload was a rollback.`,
		Example: "  lockstep deploys stats --since 7d\n  lockstep deploys stats shop/web -o json",
		RunE: func(c *cobra.Command, args []string) error {
			wanted, err := filter.read(args, time.Now())
			if err != nil {
				return err
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			if err := filter.resolve(c.Context(), a); err != nil {
				return err
			}
			response, err := api.Rollouts.GetStats(c.Context(),
				connect.NewRequest(&deploysv1.GetStatsRequest{Filter: wanted, Workloads: workloads}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, statsTable(response.Msg))
		},
	}
	filter.flags(a, c, true)
	c.Flags().
		Int32Var(&workloads, "workloads", 0, "largest number of workloads, those with the most rollouts "+
			"first; default 100")
	return c
}

func statsTable(s *deploysv1.GetStatsResponse) table {
	t := table{
		header: []string{
			"WORKLOAD",
			"ROLLOUTS",
			"COMPLETED",
			"RUNNING",
			"P50",
			"P95",
			"PER DAY",
			"FAILED",
			"ROLLED BACK",
		},
	}
	row := func(name string, s *deploysv1.Stats) {
		t.rows = append(t.rows, []string{
			name,
			strconv.FormatInt(s.GetRollouts(), 10),
			strconv.FormatInt(s.GetCompleted(), 10),
			strconv.FormatInt(s.GetRunning(), 10),
			formatDuration(s.GetDurationP50()),
			formatDuration(s.GetDurationP95()),
			strconv.FormatFloat(s.GetDeploysPerDay(), 'f', 2, 64),
			formatShare(s.GetChangeFailureRate(), s.GetFailedChanges(), s.GetChanges()),
			formatShare(s.GetRollbackRate(), s.GetRolledBack(), s.GetRollouts()),
		})
	}
	if s.GetTotal().GetRollouts() == 0 {
		return t
	}
	row("all", s.GetTotal())
	for _, one := range s.GetWorkloads() {
		row(board.Name(&deploysv1.Rollout{Workload: one.GetWorkload()}), one)
	}
	return t
}

func formatDuration(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return board.Span(d.AsDuration())
}

func formatShare(rate float64, of, all int64) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%% (%d of %d)", rate*100, of, all)
}
