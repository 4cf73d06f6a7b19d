package agent

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/agent/processes"
	"lockstep.internal/services/gateway/agent/sshserver"
)

// editorRetry applies to an editor that ends. After stableEditor the pauses begin anew.
var editorRetry = retry.Policy{Min: time.Second, Max: time.Minute}

const stableEditor = 10 * time.Minute

// runEditor runs the editor until the context ends, and starts it again when it ends.
func runEditor(ctx context.Context, config workspaceagent.Config, environ []string, logger *slog.Logger) {
	if config.Editor == nil {
		return
	}
	shell, err := sshserver.Shell()
	if err != nil {
		logger.WarnContext(ctx, "the editor cannot run", logkey.Error(err))
		return
	}
	environ = append(slices.Clip(environ),
		workspaceagent.EditorPortVariable+"="+strconv.Itoa(config.Editor.Port),
		processes.Mark(processes.Editor, config.Workspace))
	if config.Editor.Folder != "" {
		environ = append(environ, workspaceagent.EditorFolderVariable+"="+config.Editor.Folder)
	}
	for attempts := 1; ; attempts++ {
		began := time.Now()
		c := exec.CommandContext(ctx, shell, "-c", config.Editor.Line) //nolint:gosec // the workspace names it
		c.Dir, c.Env = config.Home, environ
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		// A group of its own: the shell may have started the editor as another process.
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
		c.WaitDelay = stopTimeout
		err := c.Run()
		if c.Process != nil {
			// What the shell has left would keep the port.
			_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // fails if nothing is left
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= stableEditor {
			attempts = 1
		}
		pause := editorRetry.Delay(attempts)
		logger.WarnContext(ctx, "the editor has ended; starting it again", slog.Duration(logkey.RetryIn, pause),
			logkey.Error(err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
