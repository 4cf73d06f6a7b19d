package cli

import (
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) pullSecrets() *cobra.Command {
	return group("pull-secret", "Set, list and remove the credentials with which a project pulls private images",
		a.pullSecretSet(), a.pullSecretList(), a.pullSecretRemove())
}

// maxPasswordFile is the maximum size of a file with a password, in bytes.
const maxPasswordFile = 17 << 10

func (a *app) pullSecretSet() *cobra.Command {
	var project, file string
	request := &statev1.PutPullSecretRequest{}
	c := &cobra.Command{
		Use: "set REGISTRY --project PROJECT --username NAME --password-file FILE", Args: exactly("REGISTRY"),
		Short: "Set the credentials of a registry",
		Long: `Set the credentials of a registry for the workspaces of a project. Workspaces get them at once, and no pod is
replaced. A workspace whose image could not be pulled needs a restart if the project had no pull secrets before.
Write the registry as in images: registry.example, registry.example:5000, or docker.io.`,
		Example: "  lockstep pull-secret set registry.example --project acme/shop --username ci --password-file - < token",
		RunE: func(c *cobra.Command, args []string) error {
			password, err := readInput(file, "password", maxPasswordFile, c.InOrStdin())
			if err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			request.Registry, request.Password = args[0], strings.TrimRight(string(password), "\r\n")
			if request.ProjectId, err = a.names(c.Context(), api).projectID(project); err != nil {
				return err
			}
			response, err := api.PullSecrets.PutPullSecret(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, pullSecretTable(response.Msg.GetPullSecret()))
		},
	}
	c.Flags().StringVar(&request.Username, "username", "", "user name at the registry")
	c.Flags().StringVar(&file, "password-file", "", "file with the password or token; - reads it from stdin")
	a.projectFlag(c, &project, "project", "project whose workspaces pull the images")
	for _, flag := range []string{"project", "username", "password-file"} {
		_ = c.MarkFlagRequired(flag)
	}
	return c
}

func (a *app) pullSecretList() *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "list --project PROJECT", Short: "List the registries that have credentials", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.ListPullSecretsRequest{}
			if request.ProjectId, err = a.names(c.Context(), api).projectID(project); err != nil {
				return err
			}
			response, err := api.PullSecrets.ListPullSecrets(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, pullSecretTable(response.Msg.GetPullSecrets()...))
		},
	}
	a.projectFlag(c, &project, "project", "project whose workspaces pull the images")
	_ = c.MarkFlagRequired("project")
	return c
}

func (a *app) pullSecretRemove() *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "remove REGISTRY --project PROJECT", Short: "Remove the credentials of a registry", Args: exactly("REGISTRY"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.RemovePullSecretRequest{Registry: args[0]}
			if request.ProjectId, err = a.names(c.Context(), api).projectID(project); err != nil {
				return err
			}
			response, err := api.PullSecrets.RemovePullSecret(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			return a.note("removed the pull secret of %s", args[0])
		},
	}
	a.projectFlag(c, &project, "project", "project whose workspaces pull the images")
	_ = c.MarkFlagRequired("project")
	return c
}

func pullSecretTable(secrets ...*statev1.PullSecret) table {
	t := table{header: []string{"REGISTRY", "USERNAME", "AGE"}}
	for _, s := range secrets {
		t.rows = append(t.rows, []string{s.GetRegistry(), s.GetUsername(), age(s.GetUpdatedAt())})
	}
	return t
}
