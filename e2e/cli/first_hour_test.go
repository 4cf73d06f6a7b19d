package cli_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/e2e/fixture"
)

var updatePages = flag.Bool("update", false, "write the outputs in docs/first-hour.md")

const (
	// interrupt is the last line of a command that runs until Ctrl-C.
	interrupt = "^C"
	// stands is how long -update waits until an output does not change any more.
	stands = 1500 * time.Millisecond
)

// hour is docs/first-hour.md: its commands, and what they print.
type hour struct {
	t   *testing.T
	cli fixture.CLI
	dir string
}

// requireFirstHour runs the commands of docs/first-hour.md in their order. Each must print what the page says. With
// -update it writes what they print to the page.
func requireFirstHour(t *testing.T, cli fixture.CLI, kubelab string) {
	t.Helper()
	dir, programs := t.TempDir(), t.TempDir()
	kubectl := "#!/bin/sh\nexec " + kubelab + " kubectl \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(programs, "kubectl"), []byte(kubectl), 0o700))
	cli = cli.With("PATH=" + programs + ":" + filepath.Dir(cli.Path) + ":" + os.Getenv("PATH"))
	root, err := architecture.Root()
	require.NoError(t, err)
	path := filepath.Join(root, "docs", "first-hour.md")
	page := readFile(t, path)
	h := hour{t: t, cli: cli, dir: dir}
	var written strings.Builder
	for i, part := range strings.Split(page, "```") {
		block, isConsole := strings.CutPrefix(part, "console\n")
		if i > 0 {
			written.WriteString("```")
		}
		if !isConsole {
			written.WriteString(part)
			continue
		}
		written.WriteString("console\n")
		for _, command := range strings.Split("\n"+block, "\n$ ")[1:] {
			line, expected, _ := strings.Cut(command, "\n")
			t.Logf("$ %s", line)
			fmt.Fprintf(&written, "$ %s\n%s", line, h.run(line, expected))
		}
	}
	if *updatePages {
		require.NoError(t, os.WriteFile(path, []byte(written.String()), 0o644))
	}
}

// run runs a command and returns what it prints. Without -update that is what the page says: a command that only
// reads is repeated until then, since changes take effect later.
func (h hour) run(command, expected string) string {
	h.t.Helper()
	if expected = strings.TrimSuffix(expected, "\n"); expected != "" {
		expected += "\n"
	}
	if strings.HasSuffix(expected, interrupt+"\n") {
		return h.runUntilInterrupted(command, expected)
	}
	printed := h.once(command)
	if !*updatePages && printed == expected {
		return printed
	}
	if !onlyReads(command) {
		if !*updatePages {
			require.Equal(h.t, expected, printed, command)
		}
		return printed
	}
	changed := time.Now()
	require.EventuallyWithT(h.t, func(c *assert.CollectT) {
		if again := h.once(command); again != printed {
			printed, changed = again, time.Now()
		}
		if *updatePages {
			require.Greater(c, time.Since(changed), stands)
		} else {
			require.Equal(c, expected, printed)
		}
	}, fixture.Timeout, fixture.PollInterval, command)
	return printed
}

// onlyReads reports whether a command changes nothing.
func onlyReads(command string) bool {
	return slices.ContainsFunc([]string{" list", " get ", " agents", " pods", " stats", "whoami"}, func(word string) bool {
		return strings.Contains(command+" ", word)
	})
}

// once runs a command to its end.
func (h hour) once(command string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), fixture.Timeout)
	defer cancel()
	cmd := h.command(ctx, command)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(h.t, err, command)
	}
	return h.shown(string(out), cmd.ProcessState.ExitCode())
}

// runUntilInterrupted starts a command, waits for what it must print, and interrupts it as Ctrl-C does.
func (h hour) runUntilInterrupted(command, expected string) string {
	h.t.Helper()
	out := &output{}
	cmd := h.command(h.t.Context(), command)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(h.t, cmd.Start())
	begun := time.Now()
	prefix := strings.TrimSuffix(expected, interrupt+"\n")
	require.Eventually(h.t, func() bool {
		if *updatePages {
			return time.Since(begun) > stands
		}
		return h.shown(out.String(), 0) == prefix
	}, fixture.Timeout, fixture.PollInterval, "%s prints\n%s\nand not\n%s", command, out, expected)
	require.NoError(h.t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
	require.NoError(h.t, cmd.Wait(), "Ctrl-C is the ordinary end: %s", command)
	return h.shown(out.String(), 0) + interrupt + "\n"
}

// command returns a command of a shell in the folder of the user.
func (h hour) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = h.dir, h.cli.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// shown returns an output as the page shows it: without what is different each time, and with the exit status.
func (h hour) shown(printed string, code int) string {
	text := strings.ReplaceAll(withoutStates(plain(printed)), h.dir, "<dir>")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if code != 0 {
		text += fmt.Sprintf("[exit status %d]\n", code)
	}
	return text
}

// output collects what a running command prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
