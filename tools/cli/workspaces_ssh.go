package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
)

// exitStatusError ends this program with the status of another one, without a message.
type exitStatusError int

func (s exitStatusError) Error() string { return "exit status " + strconv.Itoa(int(s)) }

const (
	// passwordVariable has the access token for the program that OpenSSH asks for a password.
	passwordVariable = "LOCKSTEP_SSH_PASSWORD"
	// askPassScript answers OpenSSH's question. The token is in the environment, not in a file.
	askPassScript = "#!/bin/sh\nprintf '%s\\n' \"$" + passwordVariable + "\"\n"
	sshFolderMode = 0o700
	scriptMode    = 0o700
)

func (a *app) workspaceSSH() *cobra.Command {
	return &cobra.Command{
		Use:               "ssh WORKSPACE [-- COMMAND...]",
		Short:             "Open a shell in a workspace, or run a command",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeWorkspaces,
		Long: `Open a shell in a workspace, or run a command there, with OpenSSH's program ssh. You sign in at the
gateway with a token of some minutes; no key is needed. The host key comes from the gateway by HTTPS. The exit status is
that of ssh.`,
		Example: `  lockstep ws ssh mine
  lockstep ws ssh mine -- make test`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.runSSH(c, args[0], openSSH{program: "ssh", arguments: func(name string) []string {
				return append([]string{"--", name}, args[1:]...)
			}})
		},
	}
}

func (a *app) workspacePortForward() *cobra.Command {
	return &cobra.Command{
		Use:   "port-forward WORKSPACE [LOCAL:]REMOTE...",
		Short: "Forward ports of this machine to ports of a workspace",
		Args:  cobra.MinimumNArgs(2), ValidArgsFunction: a.completeWorkspaces,
		Long: `Listen on ports of this machine, on its loopback address only, and forward connections to ports of a
workspace until Ctrl-C. Programs in the workspace need to listen only on its loopback address.`,
		Example: `  lockstep ws port-forward mine 3000
  lockstep ws port-forward mine 8080:80 5432`,
		RunE: func(c *cobra.Command, args []string) error {
			arguments := []string{"-N", "-n", "-o", "ExitOnForwardFailure=yes"}
			for _, text := range args[1:] {
				local, remote, err := parseForward(text)
				if err != nil {
					return err
				}
				arguments = append(arguments, "-L", fmt.Sprintf("127.0.0.1:%d:127.0.0.1:%d", local, remote))
				if err := a.note("127.0.0.1:%d forwards to port %d of %s until Ctrl-C", local, remote, args[0]); err != nil {
					return err
				}
			}
			err := a.runSSH(c, args[0], openSSH{program: "ssh", background: true, arguments: func(name string) []string {
				return append(arguments, name)
			}})
			if c.Context().Err() != nil {
				return nil //nolint:nilerr // Ctrl-C is its ordinary end
			}
			return err
		},
	}
}

// parseForward parses [LOCAL:]REMOTE.
func parseForward(text string) (local, remote uint16, err error) {
	first, second, both := strings.Cut(text, ":")
	if !both {
		second = first
	}
	l, localErr := strconv.ParseUint(first, 10, 16)
	r, remoteErr := strconv.ParseUint(second, 10, 16)
	if localErr != nil || remoteErr != nil || l == 0 || r == 0 {
		return 0, 0, fault.New(errcode.InvalidArgument, "%q must be [LOCAL:]REMOTE with ports from 1 to 65535, such as "+
			"3000 or 8080:80", text)
	}
	return uint16(l), uint16(r), nil
}

func (a *app) workspaceCopy() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:   "cp [WORKSPACE:]PATH [WORKSPACE:]PATH",
		Short: "Copy files from or to a workspace",
		Args:  exactly("SOURCE", "TARGET"),
		Long: `Copy a file or, with --recursive, a folder from or to a workspace, with OpenSSH's program scp. Exactly
one of the two is in a workspace. Its relative paths begin at the home folder there.`,
		Example: `  lockstep ws cp notes.txt mine:
  lockstep ws cp --recursive mine:project/dist ./dist`,
		RunE: func(c *cobra.Command, args []string) error {
			workspace, words, err := copyArguments(args[0], args[1])
			if err != nil {
				return err
			}
			var flags []string
			if recursive {
				flags = append(flags, "-r")
			}
			return a.runSSH(c, workspace, openSSH{program: "scp", arguments: func(name string) []string {
				return append(append(flags, "--"), words(name)...)
			}})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy folders with what is in them")
	return c
}

// copyArguments returns the workspace of a copy, and the arguments of scp for its name.
func copyArguments(source, target string) (workspace string, words func(name string) []string, err error) {
	from, fromPath, fromRemote := remotePath(source)
	to, toPath, toRemote := remotePath(target)
	switch {
	case fromRemote == toRemote:
		return "", nil, fault.New(errcode.InvalidArgument, "one of %q and %q must be in a workspace, such as mine:file: "+
			"write ./%s for a file of this machine with a colon in its name", source, target, source)
	case fromRemote:
		return from, func(name string) []string { return []string{name + ":" + fromPath, target} }, nil
	default:
		return to, func(name string) []string { return []string{source, name + ":" + toPath} }, nil
	}
}

// remotePath splits WORKSPACE:PATH. A slash before the colon makes it a path of this machine, as for scp.
func remotePath(text string) (workspace, path string, remote bool) {
	workspace, path, remote = strings.Cut(text, ":")
	return workspace, path, remote && workspace != "" && !strings.Contains(workspace, "/")
}

// openSSH is a run of a program of OpenSSH.
type openSSH struct {
	program string
	// arguments get the name of the workspace.
	arguments func(name string) []string
	// background programs do not use the terminal: a Ctrl-C is for this process, which ends them.
	background bool
}

// runSSH runs a program of OpenSSH for a running workspace until it ends.
func (a *app) runSSH(c *cobra.Command, nameOrID string, run openSSH) error {
	path, err := exec.LookPath(run.program)
	if err != nil {
		return fault.Wrap(err, errcode.FailedPrecondition, "the program %s was not found: install OpenSSH's client, with "+
			"Debian: apt-get install openssh-client", run.program)
	}
	ctx := c.Context()
	api, w, err := a.runningWorkspace(ctx, nameOrID)
	if err != nil {
		return err
	}
	gateway, err := a.gateway(ctx, api)
	if err != nil {
		return err
	}
	defer gateway.Close()
	files, err := a.writeSSHFiles(ctx, gateway)
	if err != nil {
		return err
	}
	token, err := api.AccessToken(ctx, client.GatewayAudience)
	if err != nil {
		return err
	}
	options := []string{"-F", files.config, "-o", "User=" + w.GetName()}
	cmd := exec.CommandContext(ctx, path, append(options, run.arguments(w.GetName())...)...) //nolint:gosec // OpenSSH
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: run.background}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), a.stdout, a.stderr
	cmd.Env = append(os.Environ(), "SSH_ASKPASS="+files.askPass, "SSH_ASKPASS_REQUIRE=force", "DISPLAY=lockstep",
		passwordVariable+"="+token.Value)
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exitStatusError(exit.ExitCode())
	default:
		return fault.Wrap(err, errcode.Internal, "run %s: %v", run.program, err)
	}
}

// sshFiles are the files with which OpenSSH's programs run.
type sshFiles struct{ config, knownHosts, askPass, hosts string }

func (a *app) sshFiles() (sshFiles, error) {
	folder, err := filepath.Abs(filepath.Join(filepath.Dir(a.clientFile), "ssh"))
	if err != nil {
		return sshFiles{}, fmt.Errorf("find the client configuration: %w", err)
	}
	if strings.ContainsAny(folder, "\"\n%") {
		return sshFiles{}, fault.New(errcode.FailedPrecondition, "OpenSSH cannot read files in %q: choose another path of "+
			"the client configuration with --client", folder)
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	return sshFiles{
		config: in("config"), knownHosts: in("known_hosts"), askPass: in("askpass"), hosts: in("hosts"),
	}, nil
}

// writeSSHFiles writes the files for a gateway beside the client configuration.
func (a *app) writeSSHFiles(ctx context.Context, gateway *client.Gateway) (sshFiles, error) {
	files, options, err := a.knowGateway(ctx, gateway)
	if err != nil {
		return files, err
	}
	options += "  PubkeyAuthentication no\n  PreferredAuthentications password\n  NumberOfPasswordPrompts 1\n"
	return files, errors.Join(
		replaceFile(files.askPass, askPassScript, scriptMode),
		replaceFile(files.config, "Host *\n"+options, 0o600))
}

// knowGateway writes the host keys of a gateway to a file, and returns the options with which OpenSSH uses them.
func (a *app) knowGateway(ctx context.Context, gateway *client.Gateway) (sshFiles, string, error) {
	files, err := a.sshFiles()
	if err != nil {
		return files, "", err
	}
	info, err := gateway.Info(ctx)
	if err != nil {
		return files, "", err
	}
	known := strings.Join(info.SSH.KnownHosts, "\n") + "\n"
	return files, sshOptions(info, files), replaceFile(files.knownHosts, known, 0o600)
}

// sshOptions are lines of a configuration of OpenSSH: where the gateway is, and that only its host key is accepted.
func sshOptions(info client.GatewayInfo, files sshFiles) string {
	host, port, _ := strings.Cut(info.SSH.Address, ":") // the client has checked it
	dialled := host
	var alias string
	if client.IsLocalName(host) { // which the system's resolver may not know
		dialled, alias = "127.0.0.1", fmt.Sprintf("  HostKeyAlias [%s]:%s\n", host, port)
	}
	return fmt.Sprintf("  HostName %s\n  Port %s\n%s  UserKnownHostsFile %q\n  GlobalKnownHostsFile /dev/null\n"+
		"  StrictHostKeyChecking yes\n  UpdateHostKeys no\n  ServerAliveInterval 30\n", dialled, port, alias,
		files.knownHosts)
}

// replaceFile writes a file at once, unless it has this content.
func replaceFile(path, content string, mode os.FileMode) error {
	if current, err := os.ReadFile(path); err == nil && string(current) == content {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), sshFolderMode); err != nil {
		return fmt.Errorf("create a folder for OpenSSH: %w", err)
	}
	fresh, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = io.WriteString(fresh, content)
	err = errors.Join(err, fresh.Chmod(mode), fresh.Close())
	if err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(fresh.Name()))
	}
	return nil
}
