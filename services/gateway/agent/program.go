package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/agent/clone"
	"lockstep.internal/services/gateway/agent/sshserver"
)

// listen is the address of the SSH server, unless the environment has another.
var listen = ":" + strconv.Itoa(workspaceagent.Port)

var usage = `Usage:
  workspace-agent install DIR          copy this program to DIR
  workspace-agent copy FROM TO         replace the content of the folder TO by that of the folder FROM
  workspace-agent clone                clone the projects of the workspace
  workspace-agent run [-- COMMAND …]   serve SSH beside COMMAND
  workspace-agent command [NAME]       run a command of the workspace, or list them

The configuration is ` + workspaceagent.ConfigFile + `, or the file that ` + workspaceagent.ConfigVariable + ` names.
SSH is served at ` + listen + `, or at the address in ` + workspaceagent.ListenVariable + `.
Outside of a container, ` + workspaceagent.RootVariable + ` is the folder before all absolute paths.
`

// Exit statuses of the program.
const (
	statusFailed = 1
	statusUsage  = 2
	// As those of shells.
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // and the number of the signal
)

// Program is the whole of the command: it returns the exit status. A failure is one line on stderr. It is also in
// the file terminationLog, where Kubernetes reads why a container has ended, unless it is that of a command that ran.
func Program(arguments []string, stdout, stderr io.Writer, terminationLog string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := os.Getenv(workspaceagent.RootVariable)
	configFile := cmp.Or(os.Getenv(workspaceagent.ConfigVariable), filepath.Join(root, workspaceagent.ConfigFile))
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	var err error
	switch name, rest := split(arguments); {
	case name == "install" && len(rest) == 1:
		err = install(filepath.Join(root, rest[0]), stdout)
	case name == "copy" && len(rest) == 2:
		err = Copy(filepath.Join(root, rest[0]), filepath.Join(root, rest[1]))
	case name == "clone" && len(rest) == 0:
		err = cloneProjects(ctx, configFile, stdout, logger)
	case name == "command" && len(rest) <= 1:
		terminationLog = "" // people run it
		err = command(ctx, configFile, rest, stdout)
	case name == "run" && (len(rest) == 0 || len(rest) > 1 && rest[0] == "--"):
		status, isInit, initErr := ReapAsInit()
		if isInit && initErr == nil {
			return status
		}
		err = initErr
		if err == nil {
			address := cmp.Or(os.Getenv(workspaceagent.ListenVariable), listen)
			err = Run(ctx, configFile, address, rest[min(1, len(rest)):], logger)
		}
	default:
		_, _ = io.WriteString(stderr, usage) // fails only without stderr
		return statusUsage
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	case exit == nil && terminationLog != "":
		report(filepath.Join(root, terminationLog), err, logger)
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", workspaceagent.Program, err) // fails only without stderr
	return failure(err)
}

// failure is the status for an error that is not a status of a command.
func failure(err error) int {
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		if wait, is := exit.Sys().(syscall.WaitStatus); is && wait.Signaled() {
			return statusSignal + int(wait.Signal())
		}
		return statusFailed
	}
	if _, is := errors.AsType[startError](err); is {
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
			return statusNotFound
		case errors.Is(err, fs.ErrPermission):
			return statusNotExecutable
		}
	}
	return statusFailed
}

// split returns the name of the command and its arguments.
func split(arguments []string) (name string, rest []string) {
	if len(arguments) == 0 {
		return "", nil
	}
	return arguments[0], arguments[1:]
}

func install(folder string, stdout io.Writer) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	path, err := Install(executable, folder)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "installed %s\n", path)
	return err //nolint:wrapcheck // fails only without stdout
}

// cloneProjects clones all projects. One that fails does not keep the others from being cloned.
func cloneProjects(ctx context.Context, configFile string, progress io.Writer, logger *slog.Logger) error {
	config, err := LoadConfig(configFile)
	if err != nil {
		return err
	}
	credentials, err := clone.LoadCredentials(config.Credentials)
	if err != nil {
		return err
	}
	cloner := clone.New(config.Home, credentials, progress)
	if err := cloner.RemoveIncomplete(); err != nil {
		return err
	}
	var failed []error
	for _, project := range config.Projects {
		outcome, err := cloner.Clone(ctx, project)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		logger.InfoContext(ctx, "project "+string(outcome), logkey.Name, project.Name)
	}
	return errors.Join(failed...)
}

// command runs a command of the workspace in the folder where it was called, or lists all.
func command(ctx context.Context, configFile string, arguments []string, stdout io.Writer) error {
	config, err := LoadConfig(configFile)
	if err != nil {
		return err
	}
	if len(arguments) == 0 {
		for _, c := range config.Commands {
			if _, err := fmt.Fprintf(stdout, "%s\t%s\n", c.Name, strings.ReplaceAll(c.Line, "\n", "; ")); err != nil {
				return err //nolint:wrapcheck // fails only without stdout
			}
		}
		return nil
	}
	i := slices.IndexFunc(config.Commands, func(c workspaceagent.Command) bool { return c.Name == arguments[0] })
	if i < 0 {
		return fmt.Errorf("there is no command %.80q: list all with %s command", arguments[0], workspaceagent.Program)
	}
	shell, err := sshserver.Shell()
	if err != nil {
		return fmt.Errorf("command %s: %w", arguments[0], err)
	}
	return runCommand(ctx, []string{shell, "-c", config.Commands[i].Line}, os.Environ())
}

// maxTermination is how much of a message Kubernetes keeps, in bytes.
const maxTermination = 4096

// report writes why the program has failed to where Kubernetes reads it.
func report(path string, cause error, logger *slog.Logger) {
	text := strings.ToValidUTF8(cause.Error()[:min(len(cause.Error()), maxTermination)], "")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil { //nolint:gosec // Kubernetes names the file
		logger.Warn("write the reason of the failure", logkey.Error(err))
	}
}
