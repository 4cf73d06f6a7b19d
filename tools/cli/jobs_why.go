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
If it waits for a runner, a table has the runners that you can see, and each rule that keeps a runner from the job.
With admission, a table has what each controller decided.`,
		func(ctx context.Context, api *client.Runners, id int64) error {
			response, err := api.Jobs.ExplainJob(ctx, connect.NewRequest(&runnersv1.ExplainJobRequest{Id: id}))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			if err := a.write(trace.Line(response.Msg.GetMessage()) + "\n"); err != nil {
				return err
			}
			for _, t := range []table{
				prerequisiteTable(response.Msg.GetPrerequisites()), verdictTable(response.Msg.GetRunners()),
			} {
				if len(t.rows) == 0 {
					continue
				}
				if err := a.write("\n"); err != nil {
					return err
				}
				if err := a.printTable(t); err != nil {
					return err
				}
			}
			return nil
		})
}

// prerequisiteTable has a row for each controller of admission.
func prerequisiteTable(prerequisites []*runnersv1.Prerequisite) table {
	t := table{header: []string{"CONTROLLER", "NAME", "LEVEL", "STATE", "TAGS", "REASON"}}
	for _, p := range prerequisites {
		state := p.GetState()
		if p.GetDryRun() {
			state += " (dry run)"
		}
		var tags []string
		for _, tag := range p.GetAddedTags() {
			tags = append(tags, "+"+tag)
		}
		for _, tag := range p.GetRemovedTags() {
			tags = append(tags, "-"+tag)
		}
		t.rows = append(t.rows, []string{
			strconv.FormatInt(p.GetControllerId(), 10), trace.Line(p.GetName()), trace.Line(p.GetLevel()), trace.Line(state),
			trace.Line(strings.Join(tags, " ")), trace.Line(p.GetReason()),
		})
	}
	return t
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
