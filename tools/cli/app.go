package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
)

// app has what every command uses.
type app struct {
	stdout, stderr io.Writer
	clientFile     string
	client         client.Config
	flags          client.Config
	output         string
}

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, version string) int {
	a := &app{
		stdout: stdout,
		stderr: stderr,
	}
	root := a.root(version)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if status, is := errors.AsType[exitStatusError](err); is {
		return int(status)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return fault.ExitCode(fault.New(errcode.Canceled, "interrupted"))
	}
	if usage, ok := errors.AsType[usageError](err); ok {
		err = fault.New(errcode.InvalidArgument, "%s", usage.Error())
	}
	f := fault.From(err)
	message := f.Message
	if f.Code == errcode.Internal {
		// A fault of this program, not of the server: show the whole error.
		message = err.Error()
	}
	fmt.Fprintf(stderr, "lockstep: %s\n", message) //nolint:errcheck // nothing else can be done
	return fault.ExitCode(f)
}

func (a *app) root(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Control workspaces, agents, deploys and pipelines of a Lockstep system",
		Long: `Control a Lockstep system, or run one on this machine with lockstep up.

The addresses of the API and of NATS come from flags, from LOCKSTEP_* variables, or from the client configuration
file, in this order. Results go to standard output, everything else to standard error.

The exit status names the kind of error: 0 success, 1 a fault of the system, 2 a wrong request, 3 no valid token, 4 not
permitted, 5 not found, 6 the name exists, 7 changed by somebody else, 8 not in this state, 9 the workspace is being
terminated, 10 a quota is reached, 11 too many requests, 12 too large, 13 the server cannot be reached, 14 a timeout,
15 not offered, 130 interrupted.`,
		Version:       version,
		Args:          cobra.ArbitraryArgs,
		RunE:          showGroup,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.load()
		},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.clientFile, "client", client.DefaultFile(), "client configuration file (LOCKSTEP_CLIENT)")
	flags.Lookup("client").DefValue = "lockstep/client.yaml in the user's configuration folder"
	flags.StringVar(&a.flags.Server, "server", "", "URL of the API (LOCKSTEP_SERVER)")
	flags.StringVar(&a.flags.DeploysServer, "deploys-server", "",
		"URL of the API of the deploys service (LOCKSTEP_DEPLOYS_SERVER)")
	flags.StringVar(&a.flags.RunnersServer, "runners-server", "",
		"URL of the API of the runners service, or of the router (LOCKSTEP_RUNNERS_SERVER)")
	flags.StringVar(&a.flags.AdmissionServer, "admission-server", "",
		"URL of the API of the admission service (LOCKSTEP_ADMISSION_SERVER)")
	flags.StringVar(&a.flags.RelayServer, "relay-server", "", "URL of the relay (LOCKSTEP_RELAY_SERVER)")
	flags.StringVar(&a.flags.RelayCAFile, "relay-ca-file", "",
		"PEM file with the CA certificates of the relay (LOCKSTEP_RELAY_CA_FILE)")
	flags.StringVar(&a.flags.GatewayCAFile, "gateway-ca-file", "",
		"PEM file with the CA certificates of the gateway (LOCKSTEP_GATEWAY_CA_FILE)")
	flags.StringVar(&a.flags.TokenFile, "token-file", "",
		"file with a personal access token (LOCKSTEP_TOKEN_FILE; LOCKSTEP_TOKEN has the token itself)")
	flags.StringVar(&a.flags.NATSURL, "nats-url", "", "URL of NATS for events, replay and dead (LOCKSTEP_NATS_URL)")
	flags.StringVar(&a.flags.NATSSeedFile, "nats-seed-file", "",
		"file with the nkey seed for NATS (LOCKSTEP_NATS_SEED_FILE)")
	flags.StringVar(&a.flags.NATSCAFile, "nats-ca-file", "",
		"PEM file with the CA certificates of NATS (LOCKSTEP_NATS_CA_FILE)")
	flags.StringVar(&a.flags.Cell, "cell", "", "name of the cell (LOCKSTEP_CELL; default local)")
	flags.StringVarP(&a.output, "output", "o", outputTable, "output format: table, json or yaml")
	_ = root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{outputTable, outputJSON, outputYAML}, cobra.ShellCompDirectiveNoFileComp))
	for _, c := range []*cobra.Command{
		a.workspaces(), a.templates(), a.projects(), a.groups(), a.organizations(), a.users(), a.members(), a.whoAmI(),
		a.login(), a.logout(), a.version(), a.agents(), a.tokens(), a.sshKeys(), a.pullSecrets(),
		a.subscribers(), a.deploys(), a.pipelines(),
		a.jobs(), a.runners(), a.admission(), a.gatewayCommands(), a.cells(), a.kubeConfig(), a.kubeCredential(),
		a.relayCommands(), a.events(), a.replay(), a.dead(), a.rebuild(), a.natsCommands(), a.postgresCommands(),
		a.stateCommands(), a.kubernetesCommands(), a.up(),
	} {
		root.AddCommand(c)
	}
	root.SetHelpCommand(a.help())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = cobra.ArbitraryArgs, showGroup
		}
	}
	return root
}

// Variables that kubectl passes to this program.
const (
	variableServer    = "LOCKSTEP_SERVER"
	variableTokenFile = "LOCKSTEP_TOKEN_FILE"
)

// load merges the file, the environment and the flags into the client configuration. A flag
// overrides the environment, which overrides the file.
func (a *app) load() error {
	switch a.output {
	case outputTable, outputJSON, outputYAML:
	default:
		return fault.New(errcode.InvalidArgument, "output %q must be table, json or yaml", a.output)
	}
	var err error
	if a.client, err = client.Read(a.clientFile); err != nil {
		return err
	}
	for _, f := range []struct {
		field          *string
		variable, flag string
	}{
		{&a.client.Server, variableServer, a.flags.Server},
		{&a.client.DeploysServer, "LOCKSTEP_DEPLOYS_SERVER", a.flags.DeploysServer},
		{&a.client.RunnersServer, "LOCKSTEP_RUNNERS_SERVER", a.flags.RunnersServer},
		{&a.client.AdmissionServer, "LOCKSTEP_ADMISSION_SERVER", a.flags.AdmissionServer},
		{&a.client.RelayServer, "LOCKSTEP_RELAY_SERVER", a.flags.RelayServer},
		{&a.client.RelayCAFile, "LOCKSTEP_RELAY_CA_FILE", a.flags.RelayCAFile},
		{&a.client.GatewayCAFile, "LOCKSTEP_GATEWAY_CA_FILE", a.flags.GatewayCAFile},
		{&a.client.TokenFile, variableTokenFile, a.flags.TokenFile},
		{&a.client.NATSURL, "LOCKSTEP_NATS_URL", a.flags.NATSURL},
		{&a.client.NATSSeedFile, "LOCKSTEP_NATS_SEED_FILE", a.flags.NATSSeedFile},
		{&a.client.NATSCAFile, "LOCKSTEP_NATS_CA_FILE", a.flags.NATSCAFile},
		{&a.client.Cell, "LOCKSTEP_CELL", a.flags.Cell},
	} {
		if value := os.Getenv(f.variable); value != "" {
			*f.field = value
		}
		if f.flag != "" {
			*f.field = f.flag
		}
	}
	if a.client.Cell == "" {
		a.client.Cell = "local"
	}
	for _, each := range []struct{ name, address string }{
		{"server", a.client.Server},
		{"deploys server", a.client.DeploysServer},
		{"relay server", a.client.RelayServer},
		{"runners server", a.client.RunnersServer},
		{"admission server", a.client.AdmissionServer},
	} {
		if each.address == "" {
			continue
		}
		address, err := url.Parse(each.address)
		if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
			return fault.New(errcode.InvalidArgument, "%s %q must be a URL such as http://127.0.0.1:8080", each.name,
				each.address)
		}
	}
	return nil
}
