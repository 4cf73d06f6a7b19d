package cli

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

func (a *app) agents() *cobra.Command {
	return group("agent", "Register, configure and revoke agents of clusters",
		a.agentRegister(), a.agentManifest(), a.agentList(), a.agentGet(), a.agentConfigure(), a.agentResync(),
		a.agentRotate(), a.agentRevoke())
}

func (a *app) agentRegister() *cobra.Command {
	var project, file string
	c := &cobra.Command{
		Use:   "register NAME --project PROJECT --credentials FILE",
		Short: "Register an agent and write its credentials file",
		Args:  exactly("NAME"),
		Long: `Register an agent and write the credentials file of its watcher, dispatcher and relay agent. Only this
file has the token and the key that decrypts secrets: the server stores a hash of the token and the public key.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if err := checkNewFile(file); err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			projectID, err := names.projectID(project)
			if err != nil {
				return err
			}
			credentials, agent, err := stack.RegisterAgent(c.Context(), api, projectID, args[0])
			if err != nil {
				return err
			}
			if err := natsauth.WriteAgentCredentials(file, credentials); err != nil {
				return fault.Wrap(
					err,
					errcode.Internal,
					"registered agent %d, but cannot write its credentials to %s: %v; revoke it and register another",
					agent.GetId(),
					file,
					err,
				)
			}
			if err := a.note("wrote the credentials to %s", file); err != nil {
				return err
			}
			return a.print(agent, agentTable(names, agent))
		},
	}
	a.projectFlag(c, &project, "project", "project of the agent (required)")
	c.Flags().StringVar(&file, "credentials", "agent-credentials.json", "credentials file to write")
	return c
}

// checkNewFile checks that a file for credentials can be created: they are shown only once.
func checkNewFile(file string) error {
	created, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fault.New(errcode.AlreadyExists, "%s already exists: set another --credentials", file)
	case err != nil:
		return fault.Wrap(err, errcode.InvalidArgument, "--credentials: %v", err)
	}
	if err := errors.Join(created.Close(), os.Remove(file)); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "--credentials: %v", err)
	}
	return nil
}

func (a *app) agentList() *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "list", Short: "List agents, by id", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			projectID, err := names.projectID(project)
			if err != nil {
				return err
			}
			all := &statev1.ListAgentsResponse{}
			if all.Agents, err = listAgents(c.Context(), api, projectID); err != nil {
				return err
			}
			return a.print(all, agentTable(names, all.GetAgents()...))
		},
	}
	a.projectFlag(c, &project, "project", "only agents of this project")
	return c
}

func (a *app) agentGet() *cobra.Command {
	return &cobra.Command{
		Use:               "get AGENT",
		Short:             "Show one agent by id or name, and its configuration",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		RunE: func(c *cobra.Command, args []string) error {
			api, id, err := a.agent(c.Context(), args[0])
			if err != nil {
				return err
			}
			response, err := api.Agents.GetAgent(c.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, agentFields(a.names(c.Context(), api), response.Msg.GetAgent()))
		},
	}
}

func (a *app) agentRotate() *cobra.Command {
	var file string
	var overlap time.Duration
	c := &cobra.Command{
		Use:               "rotate AGENT --credentials FILE",
		Short:             "Issue a new token for an agent and write it to its credentials file",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		Long: `Issue a new token for an agent and write it to the agent's credentials file, which keeps its key and its
addresses. The token before stays valid for --valid-for: meanwhile, give the file to the agent's watcher, dispatcher and
relay agent. They read it for each connection and need no restart. Then the connections of the old token are closed.
While an agent has two tokens, it gets a third one only with --valid-for 0s, which ends both at once.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, id, err := a.agent(c.Context(), args[0])
			if err != nil {
				return err
			}
			credentials, err := natsauth.ReadAgentCredentials(file)
			switch {
			case err != nil:
				return fault.Wrap(err, errcode.InvalidArgument, "--credentials: %v", err)
			case credentials.AgentID != id:
				return fault.New(errcode.InvalidArgument, "--credentials: %s is of agent %d, not of agent %d",
					file, credentials.AgentID, id)
			}
			// Written before, so that the new token is not lost.
			if err := natsauth.WriteAgentCredentials(file, credentials); err != nil {
				return fault.Wrap(err, errcode.InvalidArgument, "--credentials: %v", err)
			}
			response, err := api.Agents.RotateAgent(c.Context(),
				connect.NewRequest(&statev1.RotateAgentRequest{Id: id, ValidFor: durationpb.New(overlap)}))
			if err != nil {
				return err
			}
			agent := response.Msg.GetAgent()
			credentials.Token = response.Msg.GetToken()
			if err := natsauth.WriteAgentCredentials(file, credentials); err != nil {
				return fault.Wrap(err, errcode.Internal,
					"rotated the token of agent %d, but cannot write %s: %v; rotate it again with --valid-for 0s", id, file, err)
			}
			if err := a.note("wrote the new token to %s; the old one is valid until %s", file,
				agent.GetPreviousTokenValidUntil().AsTime().Format(time.RFC3339)); err != nil {
				return err
			}
			return a.print(agent, agentTable(a.names(c.Context(), api), agent))
		},
	}
	c.Flags().StringVar(&file, "credentials", "agent-credentials.json", "credentials file of the agent")
	durationFlag(c, &overlap, "valid-for", 24*time.Hour, "how long the old token stays valid; 0s to 720h")
	return c
}

func (a *app) agentRevoke() *cobra.Command {
	return &cobra.Command{
		Use:               "revoke AGENT",
		Short:             "Revoke the credentials of an agent permanently and close its connections",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		RunE: func(c *cobra.Command, args []string) error {
			api, id, err := a.agent(c.Context(), args[0])
			if err != nil {
				return err
			}
			response, err := api.Agents.RevokeAgent(c.Context(), connect.NewRequest(&statev1.RevokeAgentRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, agentTable(a.names(c.Context(), api), response.Msg.GetAgent()))
		},
	}
}

func agentTable(names *names, agents ...*statev1.Agent) table {
	t := table{header: []string{"ID", "NAME", "PROJECT", "CLUSTER", "LAST SEEN", "STATE"}}
	for _, g := range agents {
		t.rows = append(t.rows, []string{
			strconv.FormatInt(g.GetId(), 10),
			g.GetName(),
			names.project(g.GetProjectId()),
			g.GetClusterUid(),
			age(g.GetLastSeenAt()),
			agentState(g),
		})
	}
	return t
}

func agentState(g *statev1.Agent) string {
	switch {
	case g.GetRevoked():
		return "revoked"
	case g.GetBlock() != nil:
		return "blocked until " + g.GetBlock().GetBlockedUntil().AsTime().Format(time.RFC3339)
	case g.GetSilentSince() != nil:
		return "silent for " + age(g.GetSilentSince())
	default:
		return "active"
	}
}

// parseID parses a positive number. The argument what names it in the error.
func parseID(what, value string) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n <= 0 {
		return 0, fault.New(errcode.InvalidArgument, "%s %q must be a positive number", what, value)
	}
	return n, nil
}
