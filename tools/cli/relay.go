package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

func (a *app) relayCommands() *cobra.Command {
	return group("relay", "Show relays and their agents, and reach targets through them",
		a.relayAgents(), a.relayList(), a.relayPods(), a.relayForward(), a.relayInit(), a.relayToken())
}

// relay returns a client of the relay, which the caller closes, and the API that issues its access
// tokens.
func (a *app) relay() (*client.Relay, *client.API, error) {
	if a.client.RelayServer == "" {
		return nil, nil, fault.New(
			errcode.InvalidArgument,
			"no relay is configured: start one with `lockstep up`, or set --relay-server, LOCKSTEP_RELAY_SERVER or "+
				"relay_server in %s",
			a.missingOrNot(),
		)
	}
	api, err := a.api()
	if err != nil {
		return nil, nil, err
	}
	relay, err := api.Relay(a.client.RelayServer, a.client.RelayCAFile)
	return relay, api, err
}

func (a *app) relayAgents() *cobra.Command {
	var project string
	c := &cobra.Command{
		Use:               "agents [AGENT]",
		Short:             "List the connections of agents, by agent",
		Args:              atMost("AGENT"),
		ValidArgsFunction: a.completeAgents,
		Long: `List the connections of one agent, of the agents of a project, or of all your agents: one per replica
and relay. Requests to an agent without a connection wait for it.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 && project != "" {
				return fault.New(errcode.InvalidArgument, "set either an agent or --project, not both")
			}
			relay, api, err := a.relay()
			if err != nil {
				return err
			}
			defer relay.Close()
			found := &relayv1.ConnectedAgentsForProjectResponse{}
			if len(args) > 0 {
				found.Agents, err = connectionsOf(c.Context(), relay, api, args[0])
			} else {
				found.Agents, err = connectionsOfProjects(c.Context(), relay, api, project)
			}
			if err != nil {
				return err
			}
			slices.SortFunc(found.GetAgents(), func(a, b *relayv1.ConnectedAgent) int {
				return cmp.Or(cmp.Compare(a.GetAgentId(), b.GetAgentId()), cmp.Compare(a.GetConnectionId(), b.GetConnectionId()))
			})
			return a.print(found, connectionTable(a.names(c.Context(), api), found.GetAgents()))
		},
	}
	a.projectFlag(c, &project, "project", "only agents of this project")
	return c
}

func connectionsOf(
	ctx context.Context, relay *client.Relay, api *client.API, agent string,
) ([]*relayv1.ConnectedAgent, error) {
	id, err := agentID(ctx, api, agent)
	if err != nil {
		return nil, err
	}
	response, err := relay.ConnectedAgentsById(ctx, connect.NewRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: id}))
	if err != nil {
		return nil, err
	}
	return response.Msg.GetAgents(), nil
}

// connectionsOfProjects returns the connections of a project; "" means all projects with agents of the caller.
func connectionsOfProjects(
	ctx context.Context, relay *client.Relay, api *client.API, project string,
) ([]*relayv1.ConnectedAgent, error) {
	id, err := (&names{ctx: ctx, api: api}).projectID(project)
	if err != nil {
		return nil, err
	}
	projects := []int64{id}
	if id == 0 {
		agents, err := listAgents(ctx, api, 0)
		if err != nil {
			return nil, err
		}
		projects = projects[:0]
		for _, agent := range agents {
			projects = append(projects, agent.GetProjectId())
		}
		slices.Sort(projects)
		projects = slices.Compact(projects)
	}
	var all []*relayv1.ConnectedAgent
	for _, id := range projects {
		response, err := relay.ConnectedAgentsForProject(ctx,
			connect.NewRequest(&relayv1.ConnectedAgentsForProjectRequest{ProjectId: id}))
		if err != nil {
			return nil, err
		}
		all = append(all, response.Msg.GetAgents()...)
	}
	return all, nil
}

func connectionTable(names *names, connections []*relayv1.ConnectedAgent) table {
	t := table{header: []string{"AGENT", "CONNECTION", "POD", "VERSION", "AGE", "RELAY"}}
	for _, c := range connections {
		pod := c.GetPodName()
		if pod != "" {
			pod = c.GetPodNamespace() + "/" + pod
		}
		t.rows = append(t.rows, []string{
			names.agent(c.GetAgentId()),
			strconv.FormatInt(c.GetConnectionId(), 10),
			pod,
			c.GetVersion(),
			age(c.GetConnectedAt()),
			c.GetRelay().GetId(),
		})
	}
	return t
}

func (a *app) relayList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the running relays, by id", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			relay, _, err := a.relay()
			if err != nil {
				return err
			}
			defer relay.Close()
			response, err := relay.ListRelays(c.Context(), connect.NewRequest(&relayv1.ListRelaysRequest{}))
			if err != nil {
				return err
			}
			slices.SortFunc(response.Msg.GetRelays(), func(a, b *relayv1.Relay) int { return cmp.Compare(a.GetId(), b.GetId()) })
			t := table{header: []string{"ID", "URL", "VERSION", "AGE"}}
			for _, r := range response.Msg.GetRelays() {
				t.rows = append(t.rows, []string{r.GetId(), r.GetUrl(), r.GetVersion(), age(r.GetStartedAt())})
			}
			return a.print(response.Msg, t)
		},
	}
}

func (a *app) relayPods() *cobra.Command {
	request := &relayv1.GetPodsRequest{}
	c := &cobra.Command{
		Use:               "pods AGENT",
		Short:             "List the running pods in the cluster of an agent",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		RunE: func(c *cobra.Command, args []string) error {
			relay, api, err := a.relay()
			if err != nil {
				return err
			}
			defer relay.Close()
			if request.AgentId, err = agentID(c.Context(), api, args[0]); err != nil {
				return err
			}
			agent, err := api.Agents.GetAgent(c.Context(),
				connect.NewRequest(&statev1.GetAgentRequest{Id: request.GetAgentId()}))
			if err != nil {
				return err
			}
			if err := a.noteUnconnected(c.Context(), relay, agent.Msg.GetAgent()); err != nil {
				return err
			}
			response, err := relay.GetPods(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			t := table{header: []string{"NAMESPACE", "NAME"}}
			for _, p := range response.Msg.GetPods() {
				t.rows = append(t.rows, []string{p.GetNamespace(), p.GetName()})
			}
			return a.print(response.Msg, t)
		},
	}
	c.Flags().Int64Var(&request.ConnectionId, "connection", 0, "use the replica with this connection; default: any")
	return c
}
