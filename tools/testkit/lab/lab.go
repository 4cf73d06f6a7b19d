package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// stopTimeout is the time after which a lab that does not stop is killed. It stops within two seconds on an idle
// machine.
const stopTimeout = time.Minute

// Lab is a running control plane.
type Lab struct {
	info   info
	binary string
	cmd    *exec.Cmd
	stdin  io.Closer // the child ends when this is closed
	output *lastLines
	done   chan struct{}
	err    error // of the exit of the child; read after done

	stop    sync.Once
	stopErr error
}

// info is the line that kubelab prints when it is ready.
type info struct {
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	Log        string `json:"log"`
	DNS        string `json:"dns"`
}

// Start starts a lab and returns when it is ready. ctx bounds the build and the start, not the life
// of the lab.
func Start(ctx context.Context, opts Options) (*Lab, error) {
	opts = opts.withDefaults()
	binary, err := Binary(ctx, opts)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, opts.args()...) //nolint:gosec,noctx // our own program; ctx bounds its start, not its life
	// A Ctrl-C at the terminal is for this process, which stops the lab.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe to kubelab: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe from kubelab: %w", err)
	}
	output := &lastLines{}
	cmd.Stderr = io.MultiWriter(opts.Output, output)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kubelab: %w", err)
	}
	l := &Lab{binary: binary, cmd: cmd, stdin: stdin, output: output, done: make(chan struct{})}
	ready := make(chan []byte, 1)
	go func() {
		defer close(l.done)
		reader := bufio.NewReader(stdout)
		if line, err := reader.ReadBytes('\n'); err == nil {
			ready <- line
		}
		_, _ = io.Copy(io.Discard, reader)
		l.err = cmd.Wait()
	}()
	select {
	case line := <-ready:
		return l.withInfo(line)
	case <-l.done:
		select {
		case line := <-ready: // it was ready before it exited
			return l.withInfo(line)
		default:
			return nil, fmt.Errorf("kubelab exited before it was ready: %w\n%s", errors.Join(l.err, stdin.Close()), output)
		}
	case <-ctx.Done():
		err := fmt.Errorf("wait for kubelab: %w\n%s", context.Cause(ctx), output)
		return nil, errors.Join(err, l.Stop())
	}
}

// withInfo sets the info from the ready line.
func (l *Lab) withInfo(line []byte) (*Lab, error) {
	if err := json.Unmarshal(line, &l.info); err != nil {
		return nil, errors.Join(fmt.Errorf("parse the ready line of kubelab (%q): %w", line, err), l.Stop())
	}
	return l, nil
}

// Binary returns the path of the kubelab program.
func (l *Lab) Binary() string { return l.binary }

// Kubeconfig returns the path of the lab's kubeconfig.
func (l *Lab) Kubeconfig() string { return l.info.Kubeconfig }

// Server returns the URL of the API server.
func (l *Lab) Server() string { return l.info.Server }

// Log returns the path of the components' log.
func (l *Lab) Log() string { return l.info.Log }

// DNS returns the address of the DNS server with the names of Services; empty without Options.WorkspaceAgent.
func (l *Lab) DNS() string { return l.info.DNS }

// Done is closed when the lab has ended, by Stop or by itself.
func (l *Lab) Done() <-chan struct{} { return l.done }

// Err returns the error of a lab that exited by itself; nil while it runs or after Stop.
func (l *Lab) Err() error {
	select {
	case <-l.done:
	default:
		return nil
	}
	if l.err == nil {
		return nil
	}
	return fmt.Errorf("kubelab: %w\n%s", l.err, l.output)
}

// Stop stops the lab and waits for its end. It returns the error of a lab that exited by itself. Further calls
// return the same.
func (l *Lab) Stop() error {
	l.stop.Do(func() {
		// The child stops when its stdin is closed.
		_ = l.stdin.Close()
		timeout := time.NewTimer(stopTimeout)
		defer timeout.Stop()
		select {
		case <-l.done:
			l.stopErr = l.Err()
		case <-timeout.C:
			_ = l.cmd.Process.Kill()
			<-l.done
			l.stopErr = fmt.Errorf("kubelab did not stop within %s and was killed\n%s", stopTimeout, l.output)
		}
	})
	return l.stopErr
}
