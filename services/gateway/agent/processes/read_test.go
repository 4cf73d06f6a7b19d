package processes_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/agent/processes"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const soon = 30 * time.Second

// watcher takes samples of the processes of one workspace.
type watcher struct {
	t         *testing.T
	workspace string
	before    processes.Sample
}

func newWatcher(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{t: t, workspace: fmt.Sprintf("workspace-%d-%s", os.Getpid(), t.Name())}
	w.before = w.sample()
	return w
}

func (w *watcher) sample() processes.Sample {
	w.t.Helper()
	now := time.Now()
	found, err := processes.Read(w.t.Context(), w.workspace, w.before)
	require.NoError(w.t, err)
	return processes.Assign(w.before, now, found)
}

// run starts a command line in a shell, with a mark, and kills it and what it has started at the end.
func (w *watcher) run(by processes.StartedBy, line string, change func(*exec.Cmd)) *exec.Cmd {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), "/bin/sh", "-c", line)
	command.Env = []string{"PATH=" + os.Getenv("PATH")}
	if by != processes.Others {
		command.Env = append(command.Env, processes.Mark(by, w.workspace))
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if change != nil {
		change(command)
	}
	require.NoError(w.t, command.Start())
	w.t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
	})
	return command
}

// used waits until the processes of people have used some time, and returns the names of their programs.
func (w *watcher) used() string {
	w.t.Helper()
	var work processes.Work
	require.Eventually(w.t, func() bool {
		work = processes.Compare(w.before, w.sample())
		return work.Used >= 100*time.Millisecond
	}, soon, 10*time.Millisecond)
	names := make([]string, len(work.Programs))
	for i, p := range work.Programs {
		names[i] = p.Name
	}
	return strings.Join(names, " ")
}

const busy = "while :; do :; done"

func TestBusyProgramWorksAndWaitingOnesDoNot(t *testing.T) {
	t.Parallel()
	waiting, other := newWatcher(t), newWatcher(t)
	waiting.run(processes.Person, "sleep 1000", nil)
	waiting.run(processes.Person, "read line", func(c *exec.Cmd) {
		stdin, err := c.StdinPipe()
		require.NoError(t, err)
		t.Cleanup(func() { _ = stdin.Close() })
	})
	waiting.run(processes.Others, busy, nil) // the image's command
	waiting.run(processes.Editor, busy, nil) // a language server
	waiting.before = waiting.sample()
	other.workspace = waiting.workspace + "-other"
	other.run(processes.Person, busy, nil)
	require.Equal(t, "sh", other.used())
	// The others had the same time to run.
	require.Less(t, processes.Compare(waiting.before, waiting.sample()).Used, 100*time.Millisecond)
}

// TestProgramThatLeavesItsSessionWorks reparents a busy program without an environment.
func TestProgramThatLeavesItsSessionWorks(t *testing.T) {
	t.Parallel()
	w := newWatcher(t)
	file := filepath.Join(t.TempDir(), "pid")
	session := w.run(processes.Person, `nohup sh -c '`+busy+`' > /dev/null 2>&1 & echo $! > `+file+`; read line`,
		func(c *exec.Cmd) {
			stdin, err := c.StdinPipe()
			require.NoError(t, err)
			t.Cleanup(func() { _ = stdin.Close() })
		})
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.HasSuffix(string(text), "\n")
	}, soon, time.Millisecond)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	require.NoError(t, syscall.Kill(session.Process.Pid, syscall.SIGKILL))
	_ = session.Wait()
	w.before = processes.Sample{} // an agent that was started again knows it by its mark
	w.before = w.sample()
	require.Equal(t, "sh", w.used())
}

func TestProgramWithAClearedEnvironmentIsOfItsSession(t *testing.T) {
	t.Parallel()
	w := newWatcher(t)
	w.run(processes.Person, `env -i /bin/sh -c '`+busy+`'; :`, nil)
	require.Equal(t, "sh", w.used())
}

func TestProgramInATerminalOfTheEditorWorks(t *testing.T) {
	t.Parallel()
	w := newWatcher(t)
	w.run(processes.Editor, busy, func(c *exec.Cmd) {
		ptmx, tty, err := pty.Open()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = ptmx.Close(), tty.Close() })
		c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
		c.SysProcAttr.Setctty = true
	})
	require.Equal(t, "sh", w.used())
}

func TestMonitorReportsWorkUntilTheNextOne(t *testing.T) {
	t.Parallel()
	w := newWatcher(t)
	m := processes.NewMonitor(w.workspace)
	loop := w.run(processes.Person, busy, nil)
	check := func() workspaceagent.WorkReport {
		report, err := m.Check(t.Context())
		require.NoError(t, err)
		return report
	}
	require.Nil(t, check().WorkedMSAgo, "there is nothing to compare with")
	var report workspaceagent.WorkReport
	require.Eventually(t, func() bool {
		report = check()
		return report.WorkedMSAgo != nil
	}, soon, 10*time.Millisecond)
	require.Equal(t, "sh", report.Programs[0].Name)
	require.Positive(t, report.Programs[0].ProcessorMS)
	require.NoError(t, syscall.Kill(-loop.Process.Pid, syscall.SIGKILL))
	_ = loop.Wait()
	require.Eventually(t, func() bool {
		report = check()
		return *report.WorkedMSAgo > 2500 // two checks after the end
	}, soon, 10*time.Millisecond)
	require.Equal(t, "sh", report.Programs[0].Name)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := processes.NewMonitor("w").Check(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestStatIsParsed(t *testing.T) {
	t.Parallel()
	line := "42 (a) b ) R 7 42 42 %s -1 4194304 1 2 3 4 150 50 300 -1 20 0 1 0 987654 1 2 3 4 5"
	p, err := processes.ParseStat(fmt.Sprintf(line, "34816"))
	require.NoError(t, err)
	require.Equal(t, processes.Process{
		Key: processes.Key{ID: 42, Start: 987654}, Parent: 7, Name: "a) b ", Terminal: true, Own: 2 * time.Second,
		Waited: 3 * time.Second,
	}, p)
	p, err = processes.ParseStat(fmt.Sprintf(line, "0"))
	require.NoError(t, err)
	require.False(t, p.Terminal)
	for _, wrong := range []string{"", "42", "42 (x)", "42 (x) R 1 2", strings.Replace(line, "987654", "x", 1)} {
		_, err := processes.ParseStat(wrong)
		require.Error(t, err, wrong)
	}
}

// FuzzStat checks that no line makes the parser fail otherwise than with an error, or return negative times.
func FuzzStat(f *testing.F) {
	f.Add("42 (a) b ) R 7 42 42 0 -1 4194304 1 2 3 4 150 50 300 -1 20 0 1 0 987654 1 2 3 4 5")
	f.Add("1 (x) S 0 0 0 0 0 0 0 0 0 0 9223372036854775807 9223372036854775807 0 0 0 0 0 0 1")
	f.Fuzz(func(t *testing.T, line string) {
		p, err := processes.ParseStat(line)
		if err == nil {
			require.GreaterOrEqual(t, min(p.Own, p.Waited), time.Duration(0))
			require.Equal(t, workspaceagent.CleanProgramName(p.Name), p.Name)
		}
	})
}
