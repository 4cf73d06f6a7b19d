package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// sshHostSuffix follows the name of a workspace in the configuration of OpenSSH.
const sshHostSuffix = ".lockstep"

func (a *app) workspaceSSHConfig() *cobra.Command {
	var install bool
	var key string
	c := &cobra.Command{
		Use:               "ssh-config [WORKSPACE...]",
		Short:             "Print the configuration with which OpenSSH and editors find workspaces by name",
		ValidArgsFunction: a.completeWorkspaces,
		Long: `Print the configuration with which OpenSSH, and editors that use it, find workspaces as
<workspace>.lockstep: the named workspaces, or else all of yours. With --install, write it beside the client
configuration, and include it in ~/.ssh/config. Run it again after you have created workspaces.

You sign in with a key: add yours with ` + "`lockstep ssh-key add FILE`" + ` first. In VS Code, choose "Connect to Host"
of the extension Remote - SSH; in JetBrains Gateway, choose "SSH Connection".`,
		Example: `  lockstep ws ssh-config --install
  ssh mine.lockstep`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names, err := a.ownWorkspaces(c, api, args)
			if err != nil {
				return err
			}
			gateway, err := a.gateway(c.Context(), api)
			if err != nil {
				return err
			}
			defer gateway.Close()
			files, options, err := a.knowGateway(c.Context(), gateway)
			if err != nil {
				return err
			}
			config, err := sshHosts(names, options, key)
			if err != nil {
				return err
			}
			if install {
				return a.installSSHConfig(files.hosts, config)
			}
			if _, err := fmt.Fprint(a.stdout, config); err != nil {
				return fmt.Errorf("print the configuration of OpenSSH: %w", err)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&install, "install", false, "include the configuration in ~/.ssh/config")
	c.Flags().StringVar(&key, "key", "", "file of the private key to sign in with; default: those that OpenSSH tries")
	return c
}

// ownWorkspaces returns the names of workspaces: the given ones, or else those of the caller.
func (a *app) ownWorkspaces(c *cobra.Command, api *client.API, args []string) ([]string, error) {
	var names []string
	for _, nameOrID := range args {
		response, err := api.Workspaces.GetWorkspace(c.Context(),
			connect.NewRequest(&statev1.GetWorkspaceRequest{Workspace: reference(nameOrID)}))
		if err != nil {
			return nil, err
		}
		names = append(names, response.Msg.GetWorkspace().GetName())
	}
	if len(args) > 0 {
		return names, nil
	}
	me, err := api.Directory.WhoAmI(c.Context(), connect.NewRequest(&statev1.WhoAmIRequest{}))
	if err != nil {
		return nil, err
	}
	filter := &statev1.WorkspaceFilter{UserId: me.Msg.GetUser().GetId()}
	for token := ""; ; {
		response, err := api.Workspaces.ListWorkspaces(c.Context(),
			connect.NewRequest(&statev1.ListWorkspacesRequest{Filter: filter, PageToken: token}))
		if err != nil {
			return nil, err
		}
		for _, w := range response.Msg.GetWorkspaces() {
			names = append(names, w.GetName())
		}
		if token = response.Msg.GetNextPageToken(); token == "" {
			slices.Sort(names)
			return names, nil
		}
	}
}

// sshHosts are sections of a configuration of OpenSSH, one for each workspace.
func sshHosts(workspaces []string, options, key string) (string, error) {
	if key != "" {
		path, err := filepath.Abs(key)
		if err != nil {
			return "", fmt.Errorf("find the key: %w", err)
		}
		if strings.ContainsAny(path, "\"\n%") {
			return "", fault.New(errcode.InvalidArgument, "OpenSSH cannot read the file %q: choose another path", path)
		}
		options += fmt.Sprintf("  IdentityFile %q\n  IdentitiesOnly yes\n", path)
	}
	var text strings.Builder
	for _, name := range workspaces {
		fmt.Fprintf(&text, "Host %s%s\n  User %s\n%s", name, sshHostSuffix, name, options)
	}
	return text.String(), nil
}

// installSSHConfig writes the configuration to a file and includes it in that of the user.
func (a *app) installSSHConfig(path, config string) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("find ~/.ssh/config: %w", err)
	}
	if err := replaceFile(path, config, 0o600); err != nil {
		return err
	}
	own := filepath.Join(home, ".ssh", "config")
	current, err := os.ReadFile(own)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", own, err)
	}
	if target, linkErr := filepath.EvalSymlinks(own); linkErr == nil {
		own = target // a link to a file elsewhere stays one
	}
	line := fmt.Sprintf("Include %q\n", path)
	if !strings.Contains("\n"+string(current), "\n"+line) {
		// Before all sections: an Include in a section counts only for its hosts.
		if err := replaceFile(own, line+string(current), 0o600); err != nil {
			return err
		}
	}
	return a.note("%s includes %s: ssh WORKSPACE%s", own, path, sshHostSuffix)
}
