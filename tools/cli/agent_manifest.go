package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/deploy"
	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// manifestFlags are the flags of agent manifest.
type manifestFlags struct {
	project         string
	register        bool
	credentialsFile string
	relayCAFile     string
	agent           deploy.Agent
}

func (a *app) agentManifest() *cobra.Command {
	var flags manifestFlags
	c := &cobra.Command{
		Use:               "manifest AGENT | --credentials FILE",
		Short:             "Print the Kubernetes objects of an agent",
		Args:              atMost("AGENT"),
		ValidArgsFunction: a.completeAgents,
		Long: `Print the Kubernetes objects of an agent, for kubectl apply: namespace, permissions, credentials, network
policies, the watcher and the dispatcher; with --relay-url, also the relay agent.

With --register, the agent is registered first, and its credentials are printed. They are shown only once: if they are
lost, revoke the agent and register another. With --credentials, they are those of the file that lockstep agent register
wrote. Otherwise the Secret is left out, so that the one in the cluster stays: use this to upgrade.`,
		Example: `  lockstep agent manifest east --register --project web --relay-url wss://relay.example | kubectl apply -f -
  lockstep agent manifest --credentials credentials.json | kubectl apply -f -
  lockstep agent manifest east --relay-url wss://relay.example | kubectl apply -f -`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := flags.validate(c, args); err != nil {
				return err
			}
			if err := a.identify(c.Context(), &flags, args); err != nil {
				return err
			}
			out, err := flags.agent.Render()
			if err != nil {
				return err
			}
			return a.write(out)
		},
	}
	f := c.Flags()
	f.BoolVar(&flags.register, "register", false, "register a new agent of this name")
	a.projectFlag(c, &flags.project, "project", "project of the new agent")
	f.StringVar(&flags.credentialsFile, "credentials", "", "credentials file of the agent")
	f.StringSliceVar(&flags.agent.Components, "component", nil,
		"what to print: watcher, dispatcher, relay-agent; default: all, the relay agent only with --relay-url")
	f.StringSliceVar(&flags.agent.RelayURLs, "relay-url", nil,
		"address of relays for agents, wss://host:port; can be repeated")
	f.StringVar(&flags.relayCAFile, "relay-agent-ca-file", "",
		"PEM file with the authority of the relays' certificate; default: those of the system")
	f.BoolVar(&flags.agent.Workloads, "workloads", false, "watch the rollouts of all workloads of the cluster")
	f.StringVar(&flags.agent.ImageRepository, "image-repository", "lockstep", "images are REPOSITORY/watcher, …")
	f.StringVar(&flags.agent.ImageTag, "image-tag", "", "tag of the images; default: the version of this program")
	f.StringSliceVar(&flags.agent.NATSPorts, "nats-port", nil,
		"port of NATS for the network policies; default: that of the credentials, else 4222")
	return c
}

// validate checks what cobra does not, and completes the components.
func (f *manifestFlags) validate(c *cobra.Command, args []string) error {
	invalid := func(format string, values ...any) error { return fault.New(errcode.InvalidArgument, format, values...) }
	switch {
	case (len(args) == 1) == (f.credentialsFile != ""):
		return invalid("name the agent or give its --credentials: see `%s --help`", c.CommandPath())
	case f.register && len(args) == 0:
		return invalid("--register needs the name of the agent")
	case f.register == (f.project == ""):
		return invalid("--register and --project belong together")
	}
	if f.agent.ImageTag == "" {
		f.agent.ImageTag = c.Root().Version
	}
	if len(f.agent.Components) == 0 {
		f.agent.Components = []string{deploy.Watcher, deploy.Dispatcher}
		if len(f.agent.RelayURLs) > 0 {
			f.agent.Components = deploy.Components()
		}
	}
	for _, component := range f.agent.Components {
		if !slices.Contains(deploy.Components(), component) {
			return invalid("--component %q is not one of %s", component, strings.Join(deploy.Components(), ", "))
		}
	}
	if slices.Contains(f.agent.Components, deploy.RelayAgent) && len(f.agent.RelayURLs) == 0 {
		return invalid("the relay agent needs --relay-url")
	}
	var err error
	if f.agent.RelayPorts, err = ports("443", f.agent.RelayURLs, "ws", "wss"); err != nil {
		return err
	}
	for _, port := range f.agent.NATSPorts {
		if !isPort(port) {
			return invalid("--nats-port %q is not a port from 1 to 65535", port)
		}
	}
	if f.relayCAFile != "" {
		raw, err := certpool.ReadPEM(f.relayCAFile)
		if err != nil {
			return invalid("--relay-agent-ca-file: %v", err)
		}
		f.agent.RelayCA = string(raw)
	}
	return nil
}

// identify sets the id of the agent, the prefix of its namespaces, and its credentials if they are known.
func (a *app) identify(ctx context.Context, flags *manifestFlags, args []string) error {
	var credentials natsauth.AgentCredentials
	var err error
	switch {
	case flags.credentialsFile != "":
		if credentials, err = natsauth.ReadAgentCredentials(flags.credentialsFile); err != nil {
			return fault.Wrap(err, errcode.InvalidArgument, "--credentials: %v", err)
		}
	case flags.register:
		api, err := a.api()
		if err != nil {
			return err
		}
		projectID, err := a.names(ctx, api).projectID(flags.project)
		if err != nil {
			return err
		}
		if credentials, _, err = stack.RegisterAgent(ctx, api, projectID, args[0]); err != nil {
			return err
		}
	default:
		api, err := a.api()
		if err != nil {
			return err
		}
		if len(flags.agent.NATSPorts) == 0 {
			flags.agent.NATSPorts = []string{natsPort}
		}
		id, err := agentID(ctx, api, args[0])
		if err != nil {
			return err
		}
		found, err := api.Agents.GetAgent(ctx, connect.NewRequest(&statev1.GetAgentRequest{Id: id}))
		if err != nil {
			return err
		}
		flags.agent.ID = id
		flags.agent.NamespacePrefix = cmp.Or(found.Msg.GetAgent().GetNamespacePrefix(), natsauth.DefaultNamespacePrefix)
		return nil
	}
	flags.agent.ID = credentials.AgentID
	flags.agent.NamespacePrefix = cmp.Or(credentials.NamespacePrefix, natsauth.DefaultNamespacePrefix)
	if len(flags.agent.NATSPorts) == 0 {
		flags.agent.NATSPorts, err = natsPorts(credentials.ServerURLs)
		if err != nil {
			// A new agent's credentials are printed in any case: they are shown only once.
			flags.agent.NATSPorts = []string{natsPort}
			err = a.note("the network policies permit port %s for NATS, since its address is unknown: %v; "+
				"correct agents.urls of the state service, and server_urls in the credentials", natsPort, err)
		}
		if err != nil {
			return err
		}
	}
	flags.agent.Credentials, err = json.MarshalIndent(credentials, "", "  ")
	if err != nil {
		return fault.Wrap(err, errcode.Internal, "encode the credentials")
	}
	return nil
}

// natsPort is the default port of NATS.
const natsPort = "4222"

// natsPorts returns the ports of addresses of NATS.
func natsPorts(addresses []string) ([]string, error) {
	if len(addresses) > 0 && strings.HasPrefix(addresses[0], "ws") { // then all do
		return ports("443", addresses, "ws", "wss")
	}
	return ports(natsPort, addresses, "nats", "tls")
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// ports returns the ports of addresses, each once.
func ports(byDefault string, addresses []string, schemes ...string) ([]string, error) {
	var found []string
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err != nil || u.Hostname() == "" || !slices.Contains(schemes, u.Scheme) {
			return nil, fault.New(errcode.InvalidArgument, "%q is not %s://host:port", address, schemes[len(schemes)-1])
		}
		port := cmp.Or(u.Port(), byDefault)
		if !isPort(port) {
			return nil, fault.New(errcode.InvalidArgument, "%q: the port is not from 1 to 65535", address)
		}
		if !slices.Contains(found, port) {
			found = append(found, port)
		}
	}
	return found, nil
}
