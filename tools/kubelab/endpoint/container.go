package endpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"
)

const (
	// exitInterrupted and exitKilled are the exit codes of a process that a signal ended.
	exitInterrupted = 130
	exitKilled      = 137
	// Characters of Ctrl-C and Ctrl-D.
	interrupt, endOfInput = '\x03', '\x04'
)

// container simulates a running container. Its contexts end with it.
type container struct {
	// input: the caller has stdin.
	input bool
	// follow prints the log from now on.
	follow func(context.Context, io.Writer) error
}

var (
	_ remotecommand.Executor    = container{}
	_ remotecommand.Attacher    = container{}
	_ portforward.PortForwarder = forwarder(nil)
)

// ExecInContainer prints the command and echoes until the input ends.
func (c container) ExecInContainer(ctx context.Context, _, _, _ string, command []string,
	in io.Reader, out, _ io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	to := newScreen(out, tty)
	if err := to.line(strings.Join(command, " ")); err != nil {
		return err
	}
	if code, exits := ExitCode(command); exits {
		return exit(code)
	}
	if !c.input {
		return nil
	}
	return c.echo(ctx, in, to, resize)
}

// AttachContainer echoes until the input ends. Without input it prints the log.
func (c container) AttachContainer(ctx context.Context, _, _, _ string,
	in io.Reader, out, _ io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize,
) error {
	to := newScreen(out, tty)
	if !c.input {
		return c.follow(ctx, to)
	}
	err := c.echo(ctx, in, to, resize)
	if exit := (exec.CodeExitError{}); errors.As(err, &exit) {
		// attach has no exit code.
		return nil
	}
	return err
}

// echo copies the input to the output until the input or the container ends. Its goroutine ends when
// the caller closes the connection.
func (c container) echo(
	ctx context.Context, in io.Reader, to *screen, resize <-chan remotecommand.TerminalSize,
) error {
	if to.tty {
		go func() {
			for size := range resize {
				// Ignore the error: the client has left.
				_ = to.line(fmt.Sprintf("terminal %dx%d", size.Width, size.Height))
			}
		}()
	}
	done := make(chan error, 1)
	go func() { done <- to.echo(in) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return exit(exitKilled)
	}
}

// exit returns the error of a command with this exit code; nil for 0.
func exit(code int) error {
	if code == 0 {
		return nil
	}
	return exec.CodeExitError{Err: fmt.Errorf("exit code %d", code), Code: code}
}

// ExitCode returns the exit code of `exit N`: `exit 3`, also as `sh -c "exit 3"`.
func ExitCode(command []string) (int, bool) {
	if len(command) == 3 && command[1] == "-c" {
		command = strings.Fields(command[2])
	}
	if len(command) != 2 || command[0] != "exit" {
		return 0, false
	}
	code, err := strconv.ParseUint(command[1], 10, 8)
	return int(code), err == nil
}

// screen is the standard output of a container.
type screen struct {
	tty bool
	mu  sync.Mutex
	out io.Writer
}

func newScreen(out io.Writer, tty bool) *screen {
	if out == nil {
		out = io.Discard
	}
	return &screen{tty: tty, out: out}
}

func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(data) //nolint:wrapcheck // a writer in front of another
}

func (s *screen) line(text string) error {
	end := "\n"
	if s.tty {
		end = "\r\n"
	}
	if _, err := io.WriteString(s, text+end); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}

// echo writes what it reads until that ends; on a terminal, Ctrl-C or Ctrl-D ends the input.
func (s *screen) echo(in io.Reader) error {
	if !s.tty {
		if _, err := io.Copy(s, in); err != nil {
			return fmt.Errorf("echo: %w", err)
		}
		return nil
	}
	buffer := make([]byte, 4<<10)
	for {
		n, err := in.Read(buffer)
		keys := buffer[:n]
		last := bytes.IndexAny(keys, string([]byte{interrupt, endOfInput}))
		if last >= 0 {
			keys = keys[:last]
		}
		if _, err := s.Write(keys); err != nil {
			return fmt.Errorf("echo: %w", err)
		}
		switch {
		case last >= 0 && buffer[last] == interrupt:
			return exit(exitInterrupted)
		case last >= 0, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the terminal: %w", err)
		}
	}
}

// forwarder connects streams with the listeners of a pod, or simulates them.
type forwarder func(port int32, stream io.ReadWriteCloser) error

// PortForward serves one connection.
func (f forwarder) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	return f(port, stream)
}

// forward echoes until EOF, or until alive is done.
func forward(alive context.Context, stream io.ReadWriter) error {
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(stream, stream)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("echo: %w", err)
		}
		return nil
	case <-alive.Done():
		return fmt.Errorf("echo: %w", context.Cause(alive))
	}
}

// forwardTo joins a stream with a port of a process, until both have ended or alive is done.
func forwardTo(alive context.Context, address string, port int32, stream io.ReadWriteCloser) error {
	conn, err := new(net.Dialer).DialContext(alive, "tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	stop := context.AfterFunc(alive, func() { _ = conn.Close() })
	defer stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// An error is not one of the forwarding: the process may have closed the connection first.
		_, _ = io.Copy(conn, stream)
		if half, ok := conn.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(stream, conn)
	// The end of the stream ends the copy to the process.
	if err = errors.Join(err, stream.Close(), conn.Close()); err != nil {
		err = fmt.Errorf("forward: %w", err)
	}
	<-sent
	return err
}
