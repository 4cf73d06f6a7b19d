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

// stopPatience is how long a lab may take to stop before it is killed; it needs one to two seconds,
// and many more where the machine is busy.
const stopPatience = time.Minute

// Lab is a running control plane.
type Lab struct {
	info  info
	cmd   *exec.Cmd
	stdin io.Closer // the child ends when this is closed
	said  *lastLines
	done  chan struct{}
	err   error // how the child ended; read after done

	stop    sync.Once
	stopErr error
}

// info is the line that kubelab prints when it is ready.
type info struct {
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	Log        string `json:"log"`
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
	// A Ctrl-C at the terminal is for this process, which stops the lab when nothing needs it any
	// more.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe to kubelab: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe from kubelab: %w", err)
	}
	said := &lastLines{}
	cmd.Stderr = io.MultiWriter(opts.Progress, said)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kubelab: %w", err)
	}
	l := &Lab{cmd: cmd, stdin: stdin, said: said, done: make(chan struct{})}
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
		if err := json.Unmarshal(line, &l.info); err != nil {
			return nil, errors.Join(fmt.Errorf("understand what kubelab said when it was ready (%q): %w", line, err), l.Stop())
		}
		return l, nil
	case <-l.done:
		return nil, fmt.Errorf("kubelab ended before it was ready: %w\n%s", errors.Join(l.err, stdin.Close()), said)
	case <-ctx.Done():
		err := fmt.Errorf("wait for kubelab: %w\n%s", context.Cause(ctx), said)
		return nil, errors.Join(err, l.Stop())
	}
}

// Kubeconfig returns the path of the kubeconfig that leads to the lab.
func (l *Lab) Kubeconfig() string { return l.info.Kubeconfig }

// Server returns the URL of the API server.
func (l *Lab) Server() string { return l.info.Server }

// Log returns the path of the components' log.
func (l *Lab) Log() string { return l.info.Log }

// Done is closed when the lab has ended, by Stop or by itself.
func (l *Lab) Done() <-chan struct{} { return l.done }

// Err says how a lab that ended by itself failed; nil while it runs and after an orderly end.
func (l *Lab) Err() error {
	select {
	case <-l.done:
	default:
		return nil
	}
	if l.err == nil {
		return nil
	}
	return fmt.Errorf("kubelab: %w\n%s", l.err, l.said)
}

// Stop stops the lab and waits for its end. It may be called again, and reports how the lab ended.
func (l *Lab) Stop() error {
	l.stop.Do(func() {
		// The child takes the end of its input as the wish to stop.
		_ = l.stdin.Close()
		patience := time.NewTimer(stopPatience)
		defer patience.Stop()
		select {
		case <-l.done:
			l.stopErr = l.Err()
		case <-patience.C:
			_ = l.cmd.Process.Kill()
			<-l.done
			l.stopErr = fmt.Errorf("kubelab did not stop within %s and was killed\n%s", stopPatience, l.said)
		}
	})
	return l.stopErr
}
