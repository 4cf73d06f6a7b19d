package cli

import (
	"context"

	"connectrpc.com/connect"

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

// agentID returns the id of an agent by its id, its name, or the path of its project and its name.
func agentID(ctx context.Context, api *client.API, text string) (int64, error) {
	return (&names{ctx: ctx, api: api}).agentID(text)
}
