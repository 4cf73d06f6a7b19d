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

// program runs a service as a child process with a configuration file.
type program struct {
	path string // of the binary
	dir  string // for configuration files
	log  io.Writer
}

// launch writes the configuration and starts the program.
func (p program) launch(name string, cfg configuration) (*Run, error) {
	file := filepath.Join(p.dir, name+".yaml")
	if err := writeSettings(file, cfg.settings); err != nil {
		return nil, err
	}
	cmd := exec.Command(p.path, "--config", file) //nolint:gosec,noctx // our own program; drain or kill ends it
	// Remove LOCKSTEP_* variables of this process. A data race must end the service.
	isOurs := func(variable string) bool { return strings.HasPrefix(variable, "LOCKSTEP_") }
	cmd.Env = slices.DeleteFunc(os.Environ(), isOurs)
	cmd.Env = append(cmd.Env, "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	return StartProgram(cmd, p.log)
}

// StartProgram starts a program that logs when it is ready and ends after SIGTERM, as services do. Its log is copied
// line by line. The program does not outlive this process.
func StartProgram(cmd *exec.Cmd, log io.Writer) (*Run, error) {
	// A Ctrl-C at the terminal is for this process, which stops its services in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	var sent atomic.Int64 // the last signal that was sent
	r := &Run{
		ready: make(chan map[string]string, 1), ended: make(chan struct{}),
		signal: func(signal syscall.Signal) error {
			sent.Store(int64(signal))
			return sendSignal(cmd, signal)
		},
	}
	cmd.Stderr = &output{log: log, ready: r.ready}
	started := make(chan error, 1)
	go func() {
		defer close(r.ended)
		// The kernel ends the program with the *thread* that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		// A process that has not installed its handlers yet is ended by the signal.
		if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() &&
			int64(status.Signal()) == sent.Load() {
			return
		}
		if err != nil {
			r.err = fmt.Errorf("program %s: %w", cmd.Path, err)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	return r, nil
}

// sendSignal sends a signal to a program, which may have ended.
func sendSignal(cmd *exec.Cmd, signal syscall.Signal) error {
	if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", signal, err)
	}
	return nil
}

// writeSettings writes the configuration as YAML. Secrets are in separate files.
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

// output copies a process's output to the log line by line, and detects the ready message.
type output struct {
	log       io.Writer
	ready     chan<- map[string]string
	readySeen bool
	rest      []byte
}

func (o *output) Write(data []byte) (int, error) {
	o.rest = append(o.rest, data...)
	end := bytes.LastIndexByte(o.rest, '\n') + 1
	if end == 0 {
		return len(data), nil
	}
	lines := o.rest[:end]
	if _, err := o.log.Write(lines); err != nil {
		return 0, fmt.Errorf("write the log: %w", err)
	}
	for line := range bytes.Lines(lines) {
		o.parseLine(line)
	}
	o.rest = append([]byte(nil), o.rest[end:]...)
	return len(data), nil
}

func (o *output) parseLine(line []byte) {
	var entry struct {
		Message   string            `json:"msg"`
		Addresses map[string]string `json:"addresses"`
	}
	if o.readySeen || json.Unmarshal(line, &entry) != nil || entry.Message != libservice.ReadyMessage {
		return
	}
	o.readySeen = true
	o.ready <- entry.Addresses
}
