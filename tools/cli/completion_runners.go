package cli

import (
	"context"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/pipelines"
	"lockstep.internal/tools/trace"
)

const (
	// completedProjects is the number of projects whose pipelines and jobs complete a word.
	completedProjects = 5
	// completedItems is the number of pipelines or jobs of each.
	completedItems = 20
)

// suggestRunners is suggest with a client of the runners service.
func (a *app) suggestRunners(
	c *cobra.Command, list func(ctx context.Context, state *client.API, api *client.Runners) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	return a.suggest(c, func(ctx context.Context, state *client.API) ([]string, error) {
		api, err := a.runnersAPI()
		if err != nil {
			return nil, err
		}
		return list(ctx, state, api)
	})
}

// completePipelines completes the first argument.
func (a *app) completePipelines(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggestRunners(c, a.pipelineWords)
}

// completePipelineFlag completes --pipeline.
func (a *app) completePipelineFlag(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.suggestRunners(c, a.pipelineWords)
}

// pipelineWords returns the ids of the newest pipelines, with their state.
func (a *app) pipelineWords(ctx context.Context, state *client.API, api *client.Runners) ([]string, error) {
	var words []string
	err := eachProject(ctx, state, func(id int64, path string) error {
		found, err := listPipelines(ctx, api, id, nil, completedItems)
		for _, p := range found.GetPipelines() {
			word := strconv.FormatInt(p.GetId(), 10) + "\t" + pipelines.State(p) + " " + path
			if ref := trace.Line(p.GetRef()); ref != "" {
				word += " " + ref
			}
			words = append(words, word)
		}
		return err
	})
	return words, err
}

func eachProject(ctx context.Context, state *client.API, do func(id int64, path string) error) error {
	projects, err := state.Projects(ctx)
	if err != nil {
		return err
	}
	for _, p := range projects[:min(len(projects), completedProjects)] {
		if err := do(p.GetId(), p.GetPath()); err != nil {
			return err
		}
	}
	return nil
}

// completeJobs completes the first argument: with --pipeline the names of its jobs, else ids of the newest jobs.
func (a *app) completeJobs(reference *jobReference) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.suggestRunners(c, func(ctx context.Context, state *client.API, api *client.Runners) ([]string, error) {
			if reference.pipeline == 0 {
				return jobWords(ctx, state, api)
			}
			response, err := api.Pipelines.GetPipeline(ctx,
				connect.NewRequest(&runnersv1.GetPipelineRequest{Id: reference.pipeline}))
			if err != nil {
				return nil, err
			}
			var words []string
			for _, j := range response.Msg.GetPipeline().GetJobs() {
				words = append(words, trace.Line(j.GetName())+"\t"+pipelines.JobState(j))
			}
			return words, nil
		})
	}
}

func jobWords(ctx context.Context, state *client.API, api *client.Runners) ([]string, error) {
	var words []string
	err := eachProject(ctx, state, func(id int64, path string) error {
		found, err := listJobs(ctx, api, &runnersv1.ListJobsRequest{ProjectId: id}, completedItems)
		for _, j := range found.GetJobs() {
			words = append(words, strconv.FormatInt(j.GetId(), 10)+"\t"+trace.Line(j.GetName())+" "+
				pipelines.JobState(j)+" "+path)
		}
		return err
	})
	return words, err
}

// completeRunners completes the first argument.
func (a *app) completeRunners(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggestRunners(c, func(ctx context.Context, _ *client.API, api *client.Runners) ([]string, error) {
		found, err := listRunners(ctx, api, &runnersv1.ListRunnersRequest{})
		words := make([]string, 0, len(found.GetRunners()))
		for _, r := range found.GetRunners() {
			words = append(words, strconv.FormatInt(r.GetId(), 10)+"\t"+trace.Line(r.GetSettings().GetDescription())+" "+
				enumWord(r.GetStatus().String(), runnerStatusPrefix))
		}
		return words, err
	})
}

// namesFlag adds a flag that takes several names.
func (a *app) namesFlag(
	c *cobra.Command, to *[]string, flag, usage string, list func(context.Context, *client.API) ([]string, error),
) {
	c.Flags().StringArrayVar(to, flag, nil, usage)
	_ = c.RegisterFlagCompletionFunc(flag,
		func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.suggest(c, list)
		})
}
