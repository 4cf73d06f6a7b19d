package subscribers_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/samples"
)

// program is a subscriber that is ready to run.
type program struct {
	args []string
	env  []string
}

func TestGoSubscriber(t *testing.T) {
	t.Parallel()
	follow(t, "in-go", program{args: []string{samples.Go(t, "deploy/subscribers/go")}})
}

func TestTypeScriptSubscriber(t *testing.T) {
	t.Parallel()
	dir := samples.TypeScript(t, "deploy/subscribers/typescript")
	follow(t, "in-typescript", program{args: []string{"node", filepath.Join(dir, "dist", "subscriber.js")}})
}

func TestShellSubscriber(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	samples.Build(t, filepath.Join(samples.Root(t), "tools", "natscli"), "go", "build", "-o", filepath.Join(dir, "nats"),
		"github.com/nats-io/natscli/nats")
	script := filepath.Join(samples.Root(t), "deploy", "subscribers", "cli", "subscriber.sh")
	follow(t, "in-a-shell", program{
		args: []string{script},
		env:  []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "XDG_CONFIG_HOME=" + dir, "HOME=" + dir},
	})
}

func TestShellSubscriberNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	script := filepath.Join(samples.Root(t), "deploy", "subscribers", "cli", "subscriber.sh")
	dir := t.TempDir()
	path := t.TempDir()
	sed, err := exec.LookPath("sed")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(sed, filepath.Join(path, "sed")))
	foreign := filepath.Join(dir, "foreign.json")
	require.NoError(t, os.WriteFile(foreign, []byte("{\n  \"url\": \"nats://h\"\n}\n"), 0o600))
	run := func(args ...string) string {
		command := exec.CommandContext(t.Context(), "/bin/sh", append([]string{script}, args...)...)
		command.Env = []string{"PATH=" + path}
		out, err := command.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, 2, command.ProcessState.ExitCode(), "%s", out)
		return string(out)
	}
	require.Contains(t, run(), "usage: ")
	require.Contains(t, run(filepath.Join(dir, "none.json")), "none.json: `lockstep subscriber create NAME")
	require.Contains(t, run(foreign), "the nats command line is missing: see https://github.com/nats-io/natscli")
	require.NoError(t, os.WriteFile(filepath.Join(path, "nats"), []byte("#!/bin/sh\n"), 0o700))
	require.Contains(t, run(foreign), "foreign.json has no stream: it is no file of `lockstep subscriber create`")

	complete := filepath.Join(dir, "complete.json")
	require.NoError(t, os.WriteFile(complete,
		[]byte("{\n  \"url\": \"u\",\n  \"stream\": \"s\",\n  \"consumer\": \"c\",\n  \"inbox_prefix\": \"i\"\n}\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(path, "nats"),
		[]byte("#!/bin/sh\necho 'nats: error: Authorization Violation' >&2\nexit 1\n"), 0o700))
	require.Contains(t, run(complete), "cannot connect: nats: error: Authorization Violation")
}

// follow lets the program read facts, stop, resume, and survive a restart of NATS.
func follow(t *testing.T, name string, p program) {
	t.Helper()
	b := setup(t, name)
	credentials := b.credentials(t, name)
	settled := func() {
		t.Helper()
		require.Eventually(t, func() bool { return b.waiting(t, name) == 0 }, timeout, 20*time.Millisecond,
			"what is read is not acknowledged")
	}

	b.publish(t, 1, 3)
	lines, stop := p.start(t, credentials)
	facts := &readFacts{first: 1, lines: lines}
	facts.awaitThrough(t, 3)
	b.publish(t, 4, 4)
	facts.awaitThrough(t, 4)
	settled()
	stop()

	b.publish(t, 5, 7)
	lines, stop = p.start(t, credentials)
	facts = &readFacts{first: 5, lines: lines}
	facts.awaitThrough(t, 7)
	settled()
	require.NoError(t, b.server.Restart())
	b.publish(t, 8, 9)
	facts.awaitThrough(t, 9)
	settled()
	stop()
}

// readFacts are the facts that one run of a program reads. A fact in flight when the program or its
// connection ended is delivered again, perhaps after a younger one.
type readFacts struct {
	// first is the first fact that is not acknowledged when the program starts.
	first int
	lines <-chan string
	read  map[int]bool
}

var factName = regexp.MustCompile(`progressed-(\d+)`)

// awaitThrough waits until the program has read every fact through the last one. It must not read an
// earlier fact than the first one.
func (r *readFacts) awaitThrough(t *testing.T, last int) {
	t.Helper()
	if r.read == nil {
		r.read = map[int]bool{}
	}
	for n := r.first; n <= last; {
		if r.read[n] {
			n++
			continue
		}
		select {
		case line := <-r.lines:
			found := factName.FindStringSubmatch(line)
			require.NotEmpty(t, found, line)
			require.Contains(t, line, "checkout")
			fact, err := strconv.Atoi(found[1])
			require.NoError(t, err)
			require.GreaterOrEqual(t, fact, r.first, "it has been acknowledged before")
			r.read[fact] = true
		case <-time.After(timeout):
			require.Fail(t, "a fact does not arrive", "%d; read: %v", n, r.read)
		}
	}
}

// start runs the program and returns its output. The function stops it and everything that it
// started.
func (p program) start(t *testing.T, credentials string) (<-chan string, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, p.args[0], append(p.args[1:len(p.args):len(p.args)], credentials)...)
	command.Env = append(os.Environ(), p.env...)
	command.Stderr = t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = timeout
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines, done := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(done)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-done
		_ = command.Wait() // ignore its exit status
	}
	t.Cleanup(stop)
	return lines, stop
}
