package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// listAgents lists the agents of a project; 0 means all projects that the caller can see.
func listAgents(ctx context.Context, api *client.API, project int64) ([]*statev1.Agent, error) {
	var all []*statev1.Agent
	for token := ""; ; {
		response, err := api.Agents.ListAgents(ctx,
			connect.NewRequest(&statev1.ListAgentsRequest{ProjectId: project, PageToken: token}))
		if err != nil {
			return nil, err
		}
		all = append(all, response.Msg.GetAgents()...)
		if token = response.Msg.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// agent returns a client of the API, and the id of the agent that an argument names.
func (a *app) agent(ctx context.Context, nameOrID string) (*client.API, int64, error) {
	api, err := a.api()
	if err != nil {
		return nil, 0, err
	}
	id, err := agentID(ctx, api, nameOrID)
	return api, id, err
}

// agentID returns the id of an agent by its id, or by a name that is unique among the projects of
// the caller.
func agentID(ctx context.Context, api *client.API, nameOrID string) (int64, error) {
	if id, err := strconv.ParseInt(nameOrID, 10, 64); err == nil && id > 0 {
		return id, nil
	}
	all, err := listAgents(ctx, api, 0)
	if err != nil {
		return 0, err
	}
	return agentOf(all, nameOrID)
}

// agentOf finds the agent with a name. A revoked agent is used only if no other agent has the name.
func agentOf(all []*statev1.Agent, name string) (int64, error) {
	var found, revoked []*statev1.Agent
	for _, agent := range all {
		switch {
		case agent.GetName() != name:
		case agent.GetRevoked():
			revoked = append(revoked, agent)
		default:
			found = append(found, agent)
		}
	}
	if len(found) == 0 {
		found = revoked
	}
	switch len(found) {
	case 0:
		return 0, fault.New(errcode.NotFound, "agent %q does not exist: see `lockstep agent list`", name)
	case 1:
		return found[0].GetId(), nil
	default:
		choices := make([]string, len(found))
		for i, agent := range found {
			choices[i] = fmt.Sprintf("%d (project %d)", agent.GetId(), agent.GetProjectId())
		}
		return 0, fault.New(errcode.InvalidArgument, "several agents are named %q: use an id, one of %s", name,
			strings.Join(choices, ", "))
	}
}

// completeAgents completes names in the shell.
func (a *app) completeAgents(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.load() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	api, err := a.api()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	all, err := listAgents(ctx, api, 0)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(all))
	for _, agent := range all {
		if !agent.GetRevoked() {
			names = append(names,
				fmt.Sprintf("%s\tagent %d of project %d", agent.GetName(), agent.GetId(), agent.GetProjectId()))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
