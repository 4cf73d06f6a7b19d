package stack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"lockstep.internal/libs/config"
	libservice "lockstep.internal/libs/service"
)

// program runs services as programs of their own, configured by a file as they are elsewhere.
type program struct {
	path string // of the binary
	dir  string // for configuration files
	log  io.Writer
}

// begin writes the configuration and starts the program.
func (p program) begin(name string, cfg configuration) (*life, error) {
	file := filepath.Join(p.dir, name+".yaml")
	if err := writeSettings(file, cfg.settings); err != nil {
		return nil, err
	}
	cmd := exec.Command(p.path, "--config", file) //nolint:gosec,noctx // our own program; its life ends by drain or kill
	// Nothing of what this process was told is for the service; and a data race ends it, so that it
	// is noticed.
	cmd.Env = slices.DeleteFunc(
		os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "LOCKSTEP_") },
	)
	cmd.Env = append(cmd.Env, "GORACE=halt_on_error=1")
	// A Ctrl-C at the terminal is for this process, which stops its services in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	var sent atomic.Int64 // the signal that shall end it
	end := func(with syscall.Signal) func() error {
		return func() error {
			sent.Store(int64(with))
			return tell(cmd, with)
		}
	}
	l := &life{
		ready: make(chan map[string]string, 1), ended: make(chan struct{}),
		drain: end(syscall.SIGTERM), kill: end(syscall.SIGKILL),
	}
	cmd.Stderr = &output{log: p.log, ready: l.ready}
	started := make(chan error, 1)
	go func() {
		defer close(l.ended)
		// The kernel ends the program with the *thread* that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		// One that has only just begun ends by the signal itself.
		if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() &&
			int64(status.Signal()) == sent.Load() {
			return
		}
		if err != nil {
			l.err = fmt.Errorf("program %s: %w", p.path, err)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	return l, nil
}

// tell sends a signal to a program, which may have ended.
func tell(cmd *exec.Cmd, signal syscall.Signal) error {
	if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", signal, err)
	}
	return nil
}

// writeSettings writes what the service would print of its configuration: secrets are in files of
// their own.
func writeSettings(file string, settings any) error {
	binding, err := config.Bind(settings, "")
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	text, err := binding.Print()
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

// output passes on to the log what a program says, in whole lines, and listens for the entry that
// says that it is ready.
type output struct {
	log   io.Writer
	ready chan<- map[string]string
	heard bool
	rest  []byte
}

func (o *output) Write(said []byte) (int, error) {
	o.rest = append(o.rest, said...)
	end := bytes.LastIndexByte(o.rest, '\n') + 1
	if end == 0 {
		return len(said), nil
	}
	lines := o.rest[:end]
	if _, err := o.log.Write(lines); err != nil {
		return 0, fmt.Errorf("write the log: %w", err)
	}
	for line := range bytes.Lines(lines) {
		o.listen(line)
	}
	o.rest = append([]byte(nil), o.rest[end:]...)
	return len(said), nil
}

func (o *output) listen(line []byte) {
	var entry struct {
		Message   string            `json:"msg"`
		Addresses map[string]string `json:"addresses"`
	}
	if o.heard || json.Unmarshal(line, &entry) != nil || entry.Message != libservice.ReadyMessage {
		return
	}
	o.heard = true
	o.ready <- entry.Addresses
}
