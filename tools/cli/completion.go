package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/topology"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/board"
	"lockstep.internal/tools/client"
)

const completionTimeout = 2 * time.Second

// suggest completes a word in the shell with what list returns: each a word, or a word and its description after a tab.
func (a *app) suggest(
	c *cobra.Command, list func(ctx context.Context, api *client.API) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if a.load() != nil {
		return nil, none
	}
	api, err := a.api()
	if err != nil {
		return nil, none
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	words, err := list(ctx, api)
	if err != nil {
		return nil, none
	}
	return words, none
}

// completeWorkspaces completes the first argument.
func (a *app) completeWorkspaces(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggest(c, func(ctx context.Context, api *client.API) ([]string, error) {
		response, err := api.Workspaces.ListWorkspaces(ctx,
			connect.NewRequest(&statev1.ListWorkspacesRequest{PageSize: 500}))
		if err != nil {
			return nil, err
		}
		words := make([]string, 0, len(response.Msg.GetWorkspaces()))
		for _, w := range response.Msg.GetWorkspaces() {
			words = append(words, w.GetName()+"\t"+actual(w))
		}
		return words, nil
	})
}

// completeAgents completes the first argument.
func (a *app) completeAgents(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggest(c, a.agentWords)
}

// completeUsers completes the first argument.
func (a *app) completeUsers(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggest(c, a.userWords)
}

// completeWorkloads completes the first argument with the workloads of the newest rollouts.
func (a *app) completeWorkloads(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggest(c, func(ctx context.Context, _ *client.API) ([]string, error) {
		api, err := a.deploysAPI()
		if err != nil {
			return nil, err
		}
		found, err := listRollouts(ctx, api, &deploysv1.RolloutFilter{}, maxRolloutPage)
		words := map[string]bool{}
		for _, r := range found.GetRollouts() {
			words[board.Name(r)] = true
		}
		return slices.Sorted(maps.Keys(words)), err
	})
}

// completeSubjects completes the first argument with the beginnings of subjects.
func completeSubjects(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{
		topology.FamilyWorkspace + ".>\thistory of workspaces",
		topology.FamilyDeploy + ".>\trollouts",
		topology.FamilyJob + ".>\tCI jobs",
		topology.FamilyAdmission + ".>\tadmission of CI jobs",
		topology.FamilyRunner + ".>\trunners of CI jobs",
		topology.FamilyObserved + ".>\twhat clusters contain",
		topology.FamilyDesired + ".>\tdesired states",
		topology.FamilyApplied + ".>\tresults of dispatchers",
		topology.FamilyControl + ".>\tconfigurations of agents",
		topology.FamilyAgent + ".>\tconnections of agents",
		topology.FamilyAudit + ".>\trequests through relays",
		topology.FamilyDead + ".>\tdead letters",
	}, cobra.ShellCompDirectiveNoFileComp
}

// agentWords returns the names of agents that are not revoked, with their project where several have the name.
func (a *app) agentWords(ctx context.Context, api *client.API) ([]string, error) {
	all, err := a.names(ctx, api).readAgents()
	all = slices.DeleteFunc(all, func(g named) bool { return g.retired })
	count := map[string]int{}
	for _, g := range all {
		count[lastName(g.path)]++
	}
	words := make([]string, 0, len(all))
	for _, g := range all {
		word := g.path
		if name := lastName(g.path); count[name] == 1 {
			word = name
		}
		words = append(words, word+"\t"+g.path)
	}
	return words, err
}

func (a *app) projectWords(ctx context.Context, api *client.API) ([]string, error) {
	all, err := a.names(ctx, api).readProjects()
	return words(all, "project"), err
}

func (a *app) userWords(ctx context.Context, api *client.API) ([]string, error) {
	all, err := a.names(ctx, api).readUsers()
	return words(all, "user"), err
}

func (a *app) groupWords(ctx context.Context, api *client.API) ([]string, error) {
	all, err := a.names(ctx, api).readGroups()
	return words(all, "group"), err
}

func (a *app) organizationWords(ctx context.Context, api *client.API) ([]string, error) {
	all, err := a.names(ctx, api).readOrganizations()
	return words(all, "organization"), err
}

func words(all []named, kind string) []string {
	out := make([]string, 0, len(all))
	for _, n := range all {
		out = append(out, n.path+"\t"+kind+" "+strconv.FormatInt(n.id, 10))
	}
	return out
}

// projectFlag adds a flag that takes a project by id, path or name.
func (a *app) projectFlag(c *cobra.Command, to *string, flag, usage string) {
	a.nameFlag(c, to, flag, usage, a.projectWords)
}

// agentFlag adds a flag that takes an agent by id or name.
func (a *app) agentFlag(c *cobra.Command, to *string, usage string) {
	a.nameFlag(c, to, "agent", usage, a.agentWords)
}

// userFlag adds a flag that takes a user by id or name.
func (a *app) userFlag(c *cobra.Command, to *string, usage string) {
	a.nameFlag(c, to, "user", usage, a.userWords)
}

func (a *app) nameFlag(
	c *cobra.Command, to *string, flag, usage string, list func(context.Context, *client.API) ([]string, error),
) {
	c.Flags().StringVar(to, flag, "", usage)
	_ = c.RegisterFlagCompletionFunc(flag,
		func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.suggest(c, list)
		})
}
