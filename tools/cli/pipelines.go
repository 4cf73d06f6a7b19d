package cli

import (
	"context"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/pipelines"
	"lockstep.internal/tools/trace"
)

const pipelineStatePrefix = "PIPELINE_STATE_"

func (a *app) pipelines() *cobra.Command {
	c := group("pipelines", "Create, watch, cancel and retry pipelines of CI jobs", a.pipelineCreate(), a.pipelineList(),
		a.pipelineGet(), a.pipelineWatch(), a.pipelineCancel(), a.pipelineRetry())
	c.Aliases = []string{"pipeline"}
	return c
}

func (a *app) pipelineList() *cobra.Command {
	var project string
	var states []string
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List pipelines of a project, newest first", Args: exactly(),
		Example: "  lockstep pipelines list\n  lockstep pipelines list --project shop/web --state failed --limit 10",
		RunE: func(c *cobra.Command, _ []string) error {
			wanted, err := enumFlag[runnersv1.PipelineState](stateFlagName, states, pipelineStatePrefix,
				runnersv1.PipelineState_value)
			if err != nil {
				return err
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			id, err := names.projectOrOnly(project)
			if err != nil {
				return err
			}
			found, err := listPipelines(c.Context(), api, id, wanted, limit)
			if err != nil {
				return err
			}
			return a.print(found, pipelineTable(names, time.Now(), found.GetPipelines()...))
		},
	}
	a.projectFlag(c, &project, "project", "project; default: the only one that you can see")
	stateFlag(c, &states, pipelineStatePrefix, runnersv1.PipelineState_value)
	c.Flags().IntVar(&limit, "limit", 50, "largest number of pipelines; 0 for all")
	return c
}

const stateFlagName = "--state"

// stateFlag adds a flag for values of an enum.
func stateFlag(c *cobra.Command, to *[]string, prefix string, values map[string]int32) {
	words := enumWords(prefix, values)
	c.Flags().StringSliceVar(to, "state", nil, "only these states, such as running,pending; can be repeated")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func listPipelines(
	ctx context.Context, api *client.Runners, project int64, states []runnersv1.PipelineState, limit int,
) (*runnersv1.ListPipelinesResponse, error) {
	all, token, err := readPages(limit, func(size int32, token string) ([]*runnersv1.Pipeline, string, error) {
		response, err := api.Pipelines.ListPipelines(ctx, connect.NewRequest(&runnersv1.ListPipelinesRequest{
			ProjectId: project, States: states, PageSize: size, PageToken: token,
		}))
		if err != nil {
			return nil, "", err
		}
		return response.Msg.GetPipelines(), response.Msg.GetNextPageToken(), nil
	})
	if err != nil {
		return nil, err
	}
	return &runnersv1.ListPipelinesResponse{Pipelines: all, NextPageToken: token}, nil
}

func pipelineTable(names *names, now time.Time, all ...*runnersv1.Pipeline) table {
	t := table{header: []string{"ID", "STATE", "REF", "PROJECT", "CREATED BY", "AGE", "DURATION"}}
	for _, p := range all {
		t.rows = append(t.rows, []string{
			strconv.FormatInt(p.GetId(), 10),
			pipelineState(p),
			trace.Line(p.GetRef()),
			names.project(p.GetProjectId()),
			names.user(p.GetCreatedBy()),
			age(p.GetCreatedAt()),
			trace.Span(pipelines.Age(p, now)),
		})
	}
	return t
}

// pipelineState returns the state of a pipeline, and whether a job failed that was allowed to.
func pipelineState(p *runnersv1.Pipeline) string {
	if p.GetWarnings() {
		return pipelines.State(p) + " (warnings)"
	}
	return pipelines.State(p)
}

func (a *app) pipelineGet() *cobra.Command {
	return &cobra.Command{
		Use: "get PIPELINE", Short: "Show one pipeline and its jobs", Args: exactly("PIPELINE"),
		ValidArgsFunction: a.completePipelines,
		Example:           "  lockstep pipelines get 1042",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := parseID("PIPELINE", args[0])
			if err != nil {
				return err
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			response, err := api.Pipelines.GetPipeline(c.Context(),
				connect.NewRequest(&runnersv1.GetPipelineRequest{Id: id}))
			if err != nil {
				return err
			}
			p := response.Msg.GetPipeline()
			if err := a.print(response.Msg, pipelineFields(names, time.Now(), p)); err != nil || a.output != outputTable {
				return err
			}
			if err := a.write("\n"); err != nil {
				return err
			}
			return a.printTable(jobTable(time.Now(), p.GetJobs()...))
		},
	}
}

func pipelineFields(names *names, now time.Time, p *runnersv1.Pipeline) table {
	var t fields
	t.add("pipeline", strconv.FormatInt(p.GetId(), 10))
	t.add("project", names.project(p.GetProjectId()))
	t.add("state", pipelineState(p))
	t.add("ref", trace.Line(p.GetRef()))
	t.add("protected", yesOrEmpty(p.GetProtected()))
	t.add("created by", names.user(p.GetCreatedBy()))
	t.add("created", clock(p.GetCreatedAt()))
	t.add("finished", clock(p.GetFinishedAt()))
	t.add("duration", trace.Span(pipelines.Age(p, now)))
	return t.table()
}

// fields is a table of names and values without empty values.
type fields struct{ rows [][]string }

func (f *fields) add(name, value string) {
	if value != "" {
		f.rows = append(f.rows, []string{name, value})
	}
}

func (f *fields) table() table { return table{header: []string{"FIELD", "VALUE"}, rows: f.rows} }

func yesOrEmpty(value bool) string {
	if value {
		return "yes"
	}
	return ""
}

func (a *app) pipelineCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel PIPELINE", Short: "Cancel all jobs of a pipeline that have not ended", Args: exactly("PIPELINE"),
		ValidArgsFunction: a.completePipelines,
		Long: "Cancel all jobs of a pipeline that have not ended. The runner of a running job executes its after_script " +
			"first.",
		Example: "  lockstep pipelines cancel 1042",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := parseID("PIPELINE", args[0])
			if err != nil {
				return err
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			response, err := api.Pipelines.CancelPipeline(c.Context(),
				connect.NewRequest(&runnersv1.CancelPipelineRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, pipelineTable(names, time.Now(), response.Msg.GetPipeline()))
		},
	}
}

func (a *app) pipelineRetry() *cobra.Command {
	var follow followFlags
	c := &cobra.Command{
		Use: "retry PIPELINE", Short: "Retry the jobs of a pipeline that failed or were canceled", Args: exactly("PIPELINE"),
		ValidArgsFunction: a.completePipelines,
		Long:              "Retry the jobs of a pipeline that failed or were canceled, if their failure was not allowed.",
		Example:           "  lockstep pipelines retry 1042 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if err := follow.check(c); err != nil {
				return err
			}
			id, err := parseID("PIPELINE", args[0])
			if err != nil {
				return err
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			response, err := api.Pipelines.RetryPipeline(c.Context(),
				connect.NewRequest(&runnersv1.RetryPipelineRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.printPipeline(c.Context(), api, names, follow, response.Msg, response.Msg.GetPipeline())
		},
	}
	follow.flags(c)
	return c
}
