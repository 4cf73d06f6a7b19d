package pg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is one run of the postgres program on a data folder.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
}

// startProcess starts the program and returns when it accepts connections. Its output goes to
// logFile.
func startProcess(
	ctx context.Context, inst installation, acc account, data, logFile string, args []string,
) (*process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer func() { _ = out.Close() }()

	// The context bounds the start, not the life of the server.
	cmd := exec.Command(inst.path("postgres"), append([]string{"-D", data}, args...)...) //nolint:gosec,noctx // see above
	acc.apply(cmd, data)
	dieWithParent(cmd.SysProcAttr)
	cmd.Stdout, cmd.Stderr = out, out

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if err := p.awaitReady(ctx, data, logFile); err != nil {
		p.stop(context.WithoutCancel(ctx), syscall.SIGQUIT)
		return nil, err
	}
	return p, nil
}

// run keeps its OS thread for as long as the program lives: the kernel sends the parent-death
// signal when the *thread* that forked ends, not the process.
func (p *process) run(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	_ = p.cmd.Wait() // its log has the error
}

func (p *process) awaitReady(ctx context.Context, data, logFile string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	pidFile := filepath.Join(data, "postmaster.pid")
	for {
		if raw, err := os.ReadFile(pidFile); err == nil && pidFileReady(string(raw), p.cmd.Process.Pid) {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("PostgreSQL exited while starting: %s", lastLines(logFile, 5))
		case <-ctx.Done():
			return fmt.Errorf(
				"wait for PostgreSQL to accept connections: %w (its log ends with: %s)", ctx.Err(), lastLines(logFile, 3),
			)
		}
	}
}

// pidFileReady reports whether postmaster.pid is from this process and its status is ready: its first line is
// the process id, its eighth the status.
func pidFileReady(content string, pid int) bool {
	lines := strings.Split(content, "\n")
	return len(lines) >= 8 && strings.TrimSpace(lines[0]) == fmt.Sprint(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// stop sends the signal and waits for the program's end; when ctx is done it escalates to SIGQUIT and SIGKILL.
func (p *process) stop(ctx context.Context, sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
		return
	case <-ctx.Done():
	}
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	grace := time.NewTimer(5 * time.Second)
	defer grace.Stop()
	select {
	case <-p.done:
	case <-grace.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// stopOrphan stops a server on the data folder whose parent has exited. The caller holds the folder's
// lock, so no parent is alive.
func stopOrphan(ctx context.Context, inst installation, acc account, data string) error {
	file := filepath.Join(data, "postmaster.pid")
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a server left behind: %w", err)
	}
	if number, _, _ := strings.Cut(string(content), "\n"); isOtherProgram(ctx, number) {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove the file of a server that has ended: %w", err)
		}
		return nil
	}
	control := func(arguments ...string) ([]byte, error) {
		arguments = append(arguments, "-D", data)
		cmd := exec.CommandContext(ctx, inst.path("pg_ctl"), arguments...) //nolint:gosec // the installation's own
		acc.apply(cmd, data)
		return cmd.CombinedOutput()
	}
	running := func() bool {
		_, err := control("status")
		return err == nil
	}
	if !running() {
		return nil // PostgreSQL removes the stale file
	}
	// A server that was killed may exit meanwhile and leave its file.
	if out, err := control("stop", "-m", "immediate", "-w", "-t", "30"); err != nil && running() {
		return fmt.Errorf("stop the server left behind in %s: %w: %s", data, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// isOtherProgram reports whether a process is no PostgreSQL: after a restart of the machine, the number of a server may
// belong to any program.
func isOtherProgram(ctx context.Context, number string) bool {
	out, err := exec.CommandContext(ctx, "ps", "-o", "args=", "-p", number).Output() //nolint:gosec // a number
	return err == nil && !strings.Contains(string(out), "postgres")
}

func lastLines(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "no log: " + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, " | ")
}
