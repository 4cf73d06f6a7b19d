// Package runnerprogram starts the real gitlab-runner program, which tests do not build: [Variable] names it.
package runnerprogram

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Variable is the environment variable with the path of the program.
const Variable = "LOCKSTEP_GITLAB_RUNNER"

// stopTimeout bounds the end of the program after SIGTERM.
const stopTimeout = 20 * time.Second

// Program is a runner with a shell executor and a folder of its own.
type Program struct {
	path, folder string
}

// Find returns the program, or skips the test if there is none.
func Find(t testing.TB) *Program {
	t.Helper()
	path := os.Getenv(Variable)
	if path == "" {
		t.Skip("not shown: no gitlab-runner; set " + Variable + " to the path of the program")
	}
	return &Program{path: path, folder: t.TempDir()}
}

// Register registers the runner with its token. concurrent is the maximum number of jobs at the same time.
func (p *Program) Register(t testing.TB, url, token string, concurrent int) {
	t.Helper()
	config := fmt.Sprintf("concurrent = %d\ncheck_interval = 1\nshutdown_timeout = 5\n", concurrent)
	require.NoError(t, os.WriteFile(p.config(), []byte(config), 0o600))
	p.command(t, "register", "--non-interactive", "--url", url, "--token", token, "--executor", "shell",
		"--shell", "bash", "--builds-dir", filepath.Join(p.folder, "builds"))
}

// Verify checks the token of the registered runner.
func (p *Program) Verify(t testing.TB) {
	t.Helper()
	p.command(t, "verify")
}

// ResetToken replaces the token of the registered runner.
func (p *Program) ResetToken(t testing.TB) {
	t.Helper()
	p.command(t, "reset-token", "--all-runners")
}

// Unregister deletes the runner, or only its manager if it was created by a user.
func (p *Program) Unregister(t testing.TB) {
	t.Helper()
	p.command(t, "unregister", "--all-runners")
}

// Start runs the runner until the test ends. The log is printed if the test has failed.
func (p *Program) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var log bytes.Buffer
	cmd := p.build(ctx, "run", "--working-directory", p.folder)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("gitlab-runner ended with %v and this log:\n%s", err, log.String())
		}
	})
}

func (p *Program) config() string { return filepath.Join(p.folder, "config.toml") }

// command runs a command of the program to its end.
func (p *Program) command(t testing.TB, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := p.build(ctx, args...).CombinedOutput()
	require.NoError(t, err, "gitlab-runner %s: %s", strconv.Quote(args[0]), out)
}

func (p *Program) build(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, append(args, "--config", p.config())...) //nolint:gosec // of the developer
	cmd.Dir = p.folder
	cmd.Env = append(os.Environ(), "HOME="+p.folder)
	return cmd
}
