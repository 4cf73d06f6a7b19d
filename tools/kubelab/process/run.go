package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"lockstep.internal/tools/kubelab/kubelet"
)

const (
	// maxTermination is how much of a termination log is read.
	maxTermination = 4096
	// outputDelay is how long the output of a process that has ended may stay open in others.
	outputDelay = time.Second
)

// command is one run of the workspace agent.
type command struct {
	program   string
	arguments []string
	environ   []string
	root      string
	output    *Log
}

// run starts the program, and returns after it has ended. When ctx ends, it sends SIGTERM, and SIGKILL after the grace
// period that grace returns.
func (c command) run(ctx context.Context, grace func() time.Duration, started func()) (kubelet.Exit, error) {
	defer c.output.end()
	logFile := filepath.Join(c.root, terminationLog)
	if err := os.Remove(logFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return kubelet.Exit{}, fmt.Errorf("remove the termination log: %w", err)
	}
	cmd := exec.Command(c.program, c.arguments...) //nolint:gosec,noctx // the lab names it; signals end it
	cmd.Dir, cmd.Env = c.root, c.environ
	cmd.Stdout, cmd.Stderr = c.output, c.output
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	exit := kubelet.Exit{Started: time.Now()}
	begun, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		// The kernel ends the process with the thread that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState has the result
		}
	}()
	if err := <-begun; err != nil {
		return exit, fmt.Errorf("start the workspace agent: %w", err)
	}
	started()
	select {
	case <-ended:
	case <-ctx.Done():
		// It fails for a process that has ended.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(grace())
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	exit.Finished, exit.Code = time.Now(), int32(cmd.ProcessState.ExitCode())
	if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		exit.Code = 128 + int32(status.Signal())
	}
	message, err := os.ReadFile(logFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return exit, fmt.Errorf("read the termination log: %w", err)
	}
	exit.Message = string(message[:min(len(message), maxTermination)])
	return exit, nil
}
