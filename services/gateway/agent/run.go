package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/agent/processes"
	"lockstep.internal/services/gateway/agent/sshserver"
)

// stopTimeout is how long the command of the container has to end after SIGTERM. Kubernetes grants the container 30 s.
const stopTimeout = 25 * time.Second

// Run serves SSH at an address such as :2222 until the context ends, or until command has ended. An empty command means
// that the container has none but the agent. The error of a command that fails is an [*exec.ExitError].
func Run(ctx context.Context, configFile, address string, command []string, logger *slog.Logger) error {
	config, err := LoadConfig(configFile)
	if err != nil {
		return err
	}
	stateFolder := filepath.Join(config.Home, workspaceagent.StateFolder)
	hostKey, err := sshserver.HostKey(stateFolder)
	if err != nil {
		return err
	}
	if err := sshserver.RemoveSockets(stateFolder); err != nil {
		logger.WarnContext(ctx, "a container that was killed has left files", logkey.Error(err))
	}
	environ := environ(os.Environ(), config)
	if folder, err := temporaryFolder(os.TempDir(), stateFolder); err != nil {
		logger.WarnContext(ctx, "there is no folder for temporary files", logkey.Error(err))
	} else if folder != "" {
		environ = append(environ, "TMPDIR="+folder)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve SSH: %w", err)
	}
	server := sshserver.New(sshserver.Options{
		Workspace: config.Workspace, HostKey: hostKey, Home: config.Home, StateFolder: stateFolder,
		Environ: environ, Logger: logger,
		Authorities: func() ([]ssh.PublicKey, error) {
			current, err := LoadConfig(configFile)
			if err != nil {
				return nil, err
			}
			return authorityKeys(current)
		},
	})
	logger.InfoContext(ctx, "serving SSH", logkey.Address, listener.Addr().String())
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(serving, listener) }()
	var beside sync.WaitGroup
	beside.Go(func() { postStart(serving, config, environ, logger) })
	beside.Go(func() { runEditor(serving, config, environ, logger) })
	if len(command) > 0 {
		err = runCommand(ctx, command, environ)
	} else {
		<-ctx.Done()
	}
	stop()
	beside.Wait()
	return errors.Join(err, <-served)
}

// temporaryFolder returns a folder on the volume for temporary files, which is empty when a container starts. It
// returns nothing if programs can use the usual one: images may lack it, or have a read-only root.
func temporaryFolder(usual, stateFolder string) (string, error) {
	own := filepath.Join(stateFolder, "tmp")
	removed := os.RemoveAll(own)
	if probe, err := os.MkdirTemp(usual, ".lockstep-"); err == nil {
		return "", os.Remove(probe) //nolint:wrapcheck // it names the folder
	}
	if err := os.MkdirAll(own, 0o700); err != nil {
		return "", errors.Join(removed, err)
	}
	return own, nil // it may have files that could not be removed
}

// userName is what USER and LOGNAME are in images without an account of the user. Variables of the container replace
// it.
const userName = "workspace"

// environ returns the environment of the container, with a home folder that exists and a name of the user.
func environ(container []string, c workspaceagent.Config) []string {
	name := cmp.Or(sshserver.UserName(), userName)
	env := []string{"USER=" + name, "LOGNAME=" + name}
	for _, variable := range container {
		switch name, _, _ := strings.Cut(variable, "="); name {
		case "HOME", workspaceagent.ConfigVariable, workspaceagent.ListenVariable, workspaceagent.RootVariable,
			processes.Variable:
		default:
			env = append(env, variable) // the last one of a name counts
		}
	}
	return append(env, "HOME="+c.Home)
}

// startError is why a command could not be started.
type startError struct{ error }

func (e startError) Error() string { return "start the command: " + e.error.Error() }

func (e startError) Unwrap() error { return e.error }

// runCommand runs the command of the container until it ends. SIGTERM ends it when the context ends.
func runCommand(ctx context.Context, command, environ []string) error {
	c := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the command of the container
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = environ
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = stopTimeout
	if err := c.Start(); err != nil {
		return startError{err}
	}
	if err := c.Wait(); ctx.Err() == nil {
		return err //nolint:wrapcheck // the caller exits with its status
	}
	return nil // it was asked to end
}

// postStart runs the commands of the workspace, one after the other. One that fails does not stop the others: people
// must be able to enter and mend it.
func postStart(ctx context.Context, config workspaceagent.Config, environ []string, logger *slog.Logger) {
	if len(config.PostStart) == 0 {
		return
	}
	shell, err := sshserver.Shell()
	if err != nil {
		logger.WarnContext(ctx, "the commands of postStart cannot run", logkey.Error(err))
		return
	}
	for _, command := range config.PostStart {
		c := exec.CommandContext(ctx, shell, "-c", command.Line) //nolint:gosec // the workspace names it
		c.Dir, c.Env = config.Home, environ
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil && ctx.Err() == nil {
			logger.WarnContext(ctx, "a command of postStart failed", slog.String(logkey.Name, command.Name),
				logkey.Error(err))
		}
	}
}
