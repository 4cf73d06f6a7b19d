package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// programs are built once for all tests that want the real ones.
var programs struct {
	command, services, shipped sync.Once

	mu  sync.Mutex
	dir string
	err error
}

// build gives the path of the command line.
func build(t *testing.T) string {
	t.Helper()
	programs.command.Do(func() { compile("", "lockstep.internal/tools/lockstep") })
	return filepath.Join(built(t), "lockstep")
}

// buildServices gives the folder of the services' programs. They look for data races where the test does.
func buildServices(t *testing.T) string {
	t.Helper()
	programs.services.Do(func() {
		var looking []string
		if lookForRaces {
			looking = []string{"-race"}
		}
		compile("", append(looking, servicePackages()...)...)
	})
	return built(t)
}

// buildShipped is buildServices without a look at data races: programs as people run them, where it is their speed that counts.
func buildShipped(t *testing.T) string {
	t.Helper()
	const folder = "shipped"
	programs.shipped.Do(func() { compile(folder, servicePackages()...) })
	return filepath.Join(built(t), folder)
}

// servicePackages are those of their programs.
func servicePackages() []string {
	packages := []string{stack.State, stack.Watcher, stack.Dispatcher, stack.Deploys, stack.Relay}
	for i, name := range packages {
		packages[i] = "lockstep.internal/services/" + name + "/cmd/" + name
	}
	return append(packages, "lockstep.internal/services/relay/cmd/"+stack.RelayAgent)
}

// built is the folder of what was built.
func built(t *testing.T) string {
	t.Helper()
	programs.mu.Lock()
	defer programs.mu.Unlock()
	require.NoError(t, programs.err)
	return programs.dir
}

// compile puts programs into a folder below that of what is built. Nothing more is built after an error.
func compile(folder string, arguments ...string) {
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.err != nil {
		return
	}
	if programs.dir == "" {
		programs.dir, programs.err = os.MkdirTemp("", "lockstep-programs-")
		if programs.err != nil {
			return
		}
	}
	said, err := exec.Command("go", append([]string{"build", "-o", filepath.Join(programs.dir, folder) + "/"}, arguments...)...).CombinedOutput()
	if err != nil {
		programs.err = errors.New(string(said))
	}
}

// commandLine is the program with an environment.
type commandLine struct {
	t    *testing.T
	path string
	env  []string
	// input is what the program reads.
	input string
}

// commandLine is set up for the system's administrator.
func (s *system) commandLine() commandLine {
	s.t.Helper()
	return newCommandLine(s.t).with(client.Variable + "=" + s.ClientFile())
}

// newCommandLine is set up for nothing: neither its user's configuration nor variables reach it.
func newCommandLine(t *testing.T) commandLine {
	t.Helper()
	env := []string{"HOME=" + t.TempDir()}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "LOCKSTEP_") && !strings.HasPrefix(variable, "HOME=") && !strings.HasPrefix(variable, "XDG_") {
			env = append(env, variable)
		}
	}
	return commandLine{t: t, path: build(t), env: env}
}

// with adds variables to the environment.
func (c commandLine) with(variables ...string) commandLine {
	c.env = append(slices.Clip(c.env), variables...)
	return c
}

// reading gives the program something to read.
func (c commandLine) reading(input string) commandLine {
	c.input = input
	return c
}

// in is for a subtest.
func (c commandLine) in(t *testing.T) commandLine {
	c.t = t
	return c
}

// run runs a command to its end: its exit code, and what it prints to its two outputs.
func (c commandLine) run(args ...string) (int, string, string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env, strings.NewReader(c.input), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(c.t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// ok runs a command that succeeds, and gives what it prints.
func (c commandLine) ok(args ...string) string {
	c.t.Helper()
	code, stdout, stderr := c.run(args...)
	require.Zero(c.t, code, "lockstep %s: %s", strings.Join(args, " "), stderr)
	return stdout
}

// fails runs a command that ends with the exit code, and gives what it complains of.
func (c commandLine) fails(want int, args ...string) string {
	c.t.Helper()
	code, stdout, stderr := c.run(args...)
	require.Equal(c.t, want, code, "lockstep %s: %s", strings.Join(args, " "), stderr)
	require.Empty(c.t, stdout)
	require.True(c.t, strings.HasPrefix(stderr, "lockstep: "), stderr)
	return stderr
}

// running is a command that runs until it is interrupted.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

// begin starts a command. What it prints, to both its outputs, is read line by line.
func (c commandLine) begin(args ...string) *running {
	c.t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(c.t, err)
	cmd := exec.Command(c.path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.env, writer, writer
	require.NoError(c.t, cmd.Start())
	require.NoError(c.t, writer.Close())
	r := &running{t: c.t, cmd: cmd, lines: make(chan string, 10_000)}
	go func() {
		defer close(r.lines)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			r.lines <- scanner.Text()
		}
	}()
	c.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		_ = reader.Close()
		for range r.lines {
			continue // until the reader has ended
		}
	})
	return r
}

// line reads on until a line has all of the words.
func (r *running) line(words ...string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var read []string
	for {
		select {
		case line, open := <-r.lines:
			require.True(r.t, open, "the program ended before it printed %q:\n%s", words, strings.Join(read, "\n"))
			read = append(read, line)
			if containsAll(line, words) {
				return line
			}
		case <-ctx.Done():
			require.FailNow(r.t, "the program does not print what is awaited", "%q:\n%s", words, strings.Join(read, "\n"))
		}
	}
}

func containsAll(line string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(line, word) {
			return false
		}
	}
	return true
}

// interrupt is Ctrl-C; it gives the exit code.
func (r *running) interrupt() int {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGINT))
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(r.t, err)
	}
	return r.cmd.ProcessState.ExitCode()
}
