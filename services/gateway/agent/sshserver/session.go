package sshserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/agent/processes"
)

const (
	// killAfter is the time from SIGHUP to SIGKILL when a client has left.
	killAfter = 5 * time.Second
	// drainTimeout is how long the output of a terminal is read after its shell has ended, in case that a program in
	// the background keeps the terminal open.
	drainTimeout = 200 * time.Millisecond
	// maxVariables is the number of environment variables that a client may set.
	maxVariables = 64
	// maxVariable is the greatest length of one in bytes.
	maxVariable = 4096
)

// session is a shell, a command or a subsystem.
type session struct {
	*connection

	channel ssh.Channel
	environ []string
	term    string // type of the terminal; empty without one
	started bool

	// window and signals reach the process when it runs.
	mu      sync.Mutex
	size    pty.Winsize
	ptmx    *os.File
	process *os.Process
}

func newSession(c *connection, channel ssh.Channel) *session {
	return &session{connection: c, channel: channel}
}

// serve returns when the session has ended.
func (s *session) serve(ctx context.Context, requests <-chan *ssh.Request) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	// In this order: the client has closed the channel, what runs gets SIGHUP and ends, the channel is closed.
	defer s.channel.Close() //nolint:errcheck // the client may have left
	defer running.Wait()
	defer cancel()
	for request := range requests {
		run, ok := s.handle(ctx, request)
		s.reply(ctx, request, ok, nil)
		if run != nil {
			running.Go(func() {
				s.exit(ctx, run(ctx))
				_ = s.channel.Close() // ends requests
			})
		}
	}
}

// handle answers a request of the client. It returns what to run, if the request starts something.
func (s *session) handle(ctx context.Context, request *ssh.Request) (run func(context.Context) error, ok bool) {
	switch request.Type {
	case "env":
		return nil, s.setVariable(request.Payload)
	case "pty-req":
		return nil, s.requestTerminal(request.Payload)
	case "window-change":
		return nil, s.resize(request.Payload)
	case "signal":
		return nil, s.signal(request.Payload)
	case "auth-agent-req@openssh.com":
		if !s.may(permitAgentForwarding) || s.started {
			return nil, false
		}
		return nil, s.forwardAgent(ctx)
	case "shell", "exec", "subsystem":
		if s.started {
			return nil, false
		}
		run = s.runner(request)
		s.started = run != nil
		return run, s.started
	default:
		return nil, false
	}
}

func (s *session) runner(request *ssh.Request) func(context.Context) error {
	if request.Type == "shell" {
		return func(ctx context.Context) error { return s.run(ctx, nil) }
	}
	var value struct{ Text string }
	if ssh.Unmarshal(request.Payload, &value) != nil {
		return nil
	}
	switch {
	case request.Type == "exec":
		return func(ctx context.Context) error { return s.run(ctx, &value.Text) }
	case value.Text == "sftp":
		return func(context.Context) error { return s.serveFiles() }
	case value.Text == SubsystemPorts:
		return func(context.Context) error { return s.servePorts() }
	case value.Text == workspaceagent.SubsystemProcesses:
		return s.serveProcesses
	default:
		return nil
	}
}

// setVariable accepts what describes the client's terminal and language, as servers of distributions do. Programs of
// the workspace take their settings from the workspace.
func (s *session) setVariable(payload []byte) bool {
	var variable struct{ Name, Value string }
	if ssh.Unmarshal(payload, &variable) != nil || len(s.environ) >= maxVariables || len(payload) > maxVariable ||
		strings.ContainsAny(variable.Name+variable.Value, "\x00") {
		return false
	}
	if variable.Name != "LANG" && variable.Name != "COLORTERM" && !strings.HasPrefix(variable.Name, "LC_") {
		return false
	}
	s.environ = append(s.environ, variable.Name+"="+variable.Value)
	return true
}

func (s *session) requestTerminal(payload []byte) bool {
	var request struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if ssh.Unmarshal(payload, &request) != nil || !s.may(permitPty) || s.started || s.term != "" ||
		strings.ContainsAny(request.Term, "=\x00") {
		return false
	}
	s.term = request.Term
	if s.term == "" {
		s.term = "dumb"
	}
	s.size = winsize(request.Columns, request.Rows, request.Width, request.Height)
	return true
}

func winsize(columns, rows, width, height uint32) pty.Winsize {
	limit := func(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }
	return pty.Winsize{Cols: limit(columns), Rows: limit(rows), X: limit(width), Y: limit(height)}
}

func (s *session) resize(payload []byte) bool {
	var request struct{ Columns, Rows, Width, Height uint32 }
	if ssh.Unmarshal(payload, &request) != nil || s.term == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = winsize(request.Columns, request.Rows, request.Width, request.Height)
	return s.ptmx == nil || pty.Setsize(s.ptmx, &s.size) == nil
}

// signals are those of RFC 4254, section 6.10, that a client may send.
var signals = map[string]syscall.Signal{
	"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "HUP": syscall.SIGHUP, "INT": syscall.SIGINT,
	"KILL": syscall.SIGKILL, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1,
	"USR2": syscall.SIGUSR2,
}

func (s *session) signal(payload []byte) bool {
	var request struct{ Name string }
	if ssh.Unmarshal(payload, &request) != nil {
		return false
	}
	number, known := signals[request.Name]
	s.mu.Lock()
	defer s.mu.Unlock()
	return known && s.process != nil && syscall.Kill(-s.process.Pid, number) == nil
}

// run runs the shell, or a command line in it, and returns when it has ended.
func (s *session) run(ctx context.Context, line *string) error {
	command, err := s.command(ctx, line)
	if err != nil {
		return err
	}
	if s.term == "" {
		return s.runPlain(ctx, command)
	}
	return s.runTerminal(command)
}

func (s *session) command(ctx context.Context, line *string) (*exec.Cmd, error) {
	shell, err := Shell()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, shell) //nolint:gosec // people run what they want in their workspace
	if line == nil {
		command.Args = loginShell(shell, variable(s.server.Environ, "PATH"))
	} else {
		command.Args = []string{shell, "-c", *line}
	}
	command.Dir = s.server.Home
	command.Env = append(append([]string{}, s.server.Environ...), "SHELL="+shell, "SSH_CONNECTION="+s.addresses(),
		processes.Mark(processes.Person, s.server.Workspace))
	command.Env = append(command.Env, s.environ...)
	if s.term != "" {
		command.Env = append(command.Env, "TERM="+s.term)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGHUP) }
	command.WaitDelay = killAfter
	return command, nil
}

// variable returns the value of an environment variable, the last one, or nothing.
func variable(environ []string, name string) string {
	for _, v := range slices.Backward(environ) {
		if value, is := strings.CutPrefix(v, name+"="); is {
			return value
		}
	}
	return ""
}

// addresses are those of the client and of the server, as in SSH_CONNECTION.
func (s *session) addresses() string {
	replace := strings.NewReplacer("[", "", "]:", " ", ":", " ")
	return replace.Replace(s.conn.RemoteAddr().String()) + " " + replace.Replace(s.conn.LocalAddr().String())
}

// runPlain connects a process by pipes. Its output is sent whole, also what programs in the background write, as
// OpenSSH does.
func (s *session) runPlain(ctx context.Context, command *exec.Cmd) error {
	stdin, err := command.StdinPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", command.Path, err)
	}
	var output sync.WaitGroup
	for _, stream := range []struct {
		file *io.Writer
		to   io.Writer
	}{{&command.Stdout, s.channel}, {&command.Stderr, s.channel.Stderr()}} {
		read, write, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start %s: %w", command.Path, err)
		}
		defer write.Close() //nolint:errcheck // closed before, unless the process did not start
		// When the client has left, programs that end on SIGHUP may still write: they would get SIGPIPE.
		stop := context.AfterFunc(ctx, func() { _ = read.SetReadDeadline(time.Now().Add(killAfter)) })
		*stream.file = write
		output.Go(func() {
			defer stop()
			defer read.Close()              //nolint:errcheck // it was only read
			_, _ = io.Copy(stream.to, read) // ends when the client or all programs do
			_, _ = io.Copy(io.Discard, read)
		})
	}
	err = s.start(command, nil)
	for _, w := range []io.Writer{command.Stdout, command.Stderr} {
		if file, ok := w.(*os.File); ok {
			_ = file.Close() // the process has it
		}
	}
	if err == nil {
		s.running.Go(func() {
			_, _ = io.Copy(stdin, s.channel) // ends when the client or the command does
			_ = stdin.Close()
		})
		err = ended(command.Wait())
	}
	output.Wait()
	return err
}

func (s *session) runTerminal(command *exec.Cmd) error {
	ptmx, tty, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	defer ptmx.Close() //nolint:errcheck // nobody has the terminal any more
	command.Stdin, command.Stdout, command.Stderr = tty, tty, tty
	command.SysProcAttr.Setctty = true
	err = s.start(command, ptmx)
	_ = tty.Close() // the process has it
	if err != nil {
		return err
	}
	output := make(chan struct{})
	s.running.Go(func() {
		defer close(output)
		_, _ = io.Copy(s.channel, ptmx) // ends with EIO when nobody has the terminal any more
	})
	s.running.Go(func() { _, _ = io.Copy(ptmx, s.channel) }) // ends when the client or the terminal is closed
	err = command.Wait()
	if deadline := ptmx.SetReadDeadline(time.Now().Add(drainTimeout)); deadline != nil {
		return fmt.Errorf("read the rest of the terminal: %w", deadline)
	}
	<-output
	s.mu.Lock()
	s.ptmx, s.process = nil, nil
	s.mu.Unlock()
	return ended(err)
}

// start starts a process. Signals and sizes reach it from then on.
func (s *session) start(command *exec.Cmd, ptmx *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ptmx != nil {
		if err := pty.Setsize(ptmx, &s.size); err != nil {
			return fmt.Errorf("set the size of the terminal: %w", err)
		}
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", command.Path, err)
	}
	s.process, s.ptmx = command.Process, ptmx
	return nil
}

// exitError is how a process ended: its status, or the signal that ended it.
type exitError struct {
	status int
	signal syscall.Signal
}

func (e exitError) Error() string { return fmt.Sprintf("status %d, signal %d", e.status, e.signal) }

// ended returns an exitError for a process that did not succeed.
func ended(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return exitError{signal: status.Signal()}
	}
	return exitError{status: exit.ExitCode()}
}

// exit tells the client how the session ended. An error of the agent is a line on stderr and status 255.
func (s *session) exit(ctx context.Context, err error) {
	var exit exitError
	if err != nil && !errors.As(err, &exit) {
		exit.status = 255
		_, _ = fmt.Fprintf(s.channel.Stderr(), "lockstep: %v\r\n", err) // the log has it, too
		s.log.WarnContext(ctx, "a session failed", logkey.Error(err))
	}
	request, payload := "exit-status", ssh.Marshal(struct{ Status uint32 }{uint32(exit.status)})
	for name, number := range signals {
		if number == exit.signal {
			request, payload = "exit-signal", ssh.Marshal(struct {
				Signal         string
				CoreDumped     bool
				Text, Language string
			}{Signal: name})
		}
	}
	if exit.signal != 0 && request == "exit-status" { // one that the protocol has no name for
		payload = ssh.Marshal(struct{ Status uint32 }{128 + uint32(exit.signal)})
	}
	_, _ = s.channel.SendRequest(request, false, payload) // the client may have left
}
