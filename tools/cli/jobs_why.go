package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/trace"
)

func (a *app) jobWhy() *cobra.Command {
	return a.jobCommand("why", "Show what a job waits for", `Show what a job waits for: other jobs, admission or a runner.
If it waits for a runner, a table has the runners that you can see, and each rule that keeps a runner from the job.`,
		func(ctx context.Context, api *client.Runners, id int64) error {
			response, err := api.Jobs.ExplainJob(ctx, connect.NewRequest(&runnersv1.ExplainJobRequest{Id: id}))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			if err := a.write(trace.Line(response.Msg.GetMessage()) + "\n"); err != nil ||
				len(response.Msg.GetRunners()) == 0 {
				return err
			}
			if err := a.write("\n"); err != nil {
				return err
			}
			return a.printTable(verdictTable(response.Msg.GetRunners()))
		})
}

// obstacleRules are the rules in the order of their columns.
func obstacleRules() []string {
	return []string{"paused", "offline", "token_expired", "scope", "protected", "tags", "untagged", "admission"}
}

// verdictTable has a row for each runner, and a column for each rule that keeps any of them from the job.
func verdictTable(verdicts []*runnersv1.RunnerVerdict) table {
	rules := obstacleRules()
	used := map[string]bool{}
	for _, v := range verdicts {
		for _, o := range v.GetObstacles() {
			used[o.GetRule()] = true
			if !slices.Contains(rules, o.GetRule()) {
				rules = append(rules, o.GetRule())
			}
		}
	}
	rules = slices.DeleteFunc(rules, func(rule string) bool { return !used[rule] })
	t := table{header: []string{"RUNNER", "DESCRIPTION", "STATUS", "TAKES IT"}}
	for _, rule := range rules {
		t.header = append(t.header, strings.ToUpper(trace.Line(rule)))
	}
	t.header = append(t.header, "BECAUSE")
	for _, v := range verdicts {
		takes := "no"
		if v.GetMatches() {
			takes = "yes"
		}
		row := []string{
			strconv.FormatInt(v.GetRunnerId(), 10), trace.Line(v.GetDescription()), trace.Line(v.GetStatus()), takes,
		}
		var because []string
		for _, rule := range rules {
			at := slices.IndexFunc(v.GetObstacles(), func(o *runnersv1.Obstacle) bool { return o.GetRule() == rule })
			if at < 0 {
				row = append(row, "✓")
				continue
			}
			row = append(row, "✗")
			because = append(because, trace.Line(v.GetObstacles()[at].GetMessage()))
		}
		t.rows = append(t.rows, append(row, strings.Join(because, "; ")))
	}
	return t
}
