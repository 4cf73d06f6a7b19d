package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(testEditor) != "" {
		serveEditor()
	}
	leaktest.Main(m)
}

const authority = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8Zi0a9m4Qf0ZzqZ9Q6mHq7c5n2Wl0hYb1mE1n8Q9bP gateway"

// configure writes the configuration of a workspace and returns it.
func configure(t *testing.T, change func(*workspaceagent.Config)) workspaceagent.Config {
	home := t.TempDir()
	c := workspaceagent.Config{Workspace: "id-of-hello", Authorities: []string{authority}, Home: home}
	if change != nil {
		change(&c)
	}
	data, err := json.Marshal(c)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "workspace.json")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	t.Setenv(workspaceagent.ConfigVariable, path)
	return c
}

func TestConfigurationIsChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workspace.json")
	for content, want := range map[string][]string{
		`{}`: {"workspace is empty", `home "" is not an absolute path`},
		`{"authorities":["ssh-rsa !"],"workspace":"w","home":"/w"}`: {"authorities[0] is not a public key"},
		`{"projects":[{"name":"x","url":"/etc"}]}`:                  {"projects[0]", "want https, http or ssh"},
		`{"post_start":[{"name":"x"}],"commands":[{"line":"a"}]}`:   {"post_start[0]: line is empty", "commands[0]: name"},
		`{"workspace":1}`: {"not valid"},
		`x`:               {"not valid"},
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := LoadConfig(path)
		for _, part := range want {
			require.ErrorContains(t, err, part, content)
		}
	}
	valid := `{"workspace":"w","home":"/w","authorities":["` + authority + `"],"of_a_newer_version":true}`
	require.NoError(t, os.WriteFile(path, []byte(valid), 0o600))
	_, err := LoadConfig(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, workspaceagent.MaxConfig+1))
	_, err = LoadConfig(path)
	require.ErrorContains(t, err, "at most 1048576 are allowed")
	_, err = LoadConfig(path + "-missing")
	require.ErrorContains(t, err, "no such file")
}

func TestInstallReplacesTheProgramAtOnce(t *testing.T) {
	source, folder := filepath.Join(t.TempDir(), "program"), t.TempDir()
	for _, content := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(source, []byte(content), 0o600))
		path, err := Install(source, folder)
		require.NoError(t, err)
		installed, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(installed))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "every user may run it")
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	_, err = Install(source, filepath.Join(folder, "missing"))
	require.ErrorContains(t, err, "install into")
}

func TestWrongUseIsExplained(t *testing.T) {
	for _, arguments := range [][]string{nil, {"install"}, {"run", "sleep"}, {"clone", "x"}, {"help"}} {
		var stderr bytes.Buffer
		require.Equal(t, statusUsage, Program(arguments, &stderr, &stderr, ""))
		require.Equal(t, usage, stderr.String())
	}
}

func TestAgentOutsideOfAContainerStaysBelowItsRoot(t *testing.T) {
	root := t.TempDir()
	t.Setenv(workspaceagent.RootVariable, root)
	volume := filepath.Join(root, "volume")
	for _, folder := range []string{volume, filepath.Join(root, "tools"), filepath.Join(root, "run/lockstep")} {
		require.NoError(t, os.MkdirAll(folder, 0o700))
	}
	require.NoError(t, os.Symlink(volume, filepath.Join(root, "workspace")))
	config := `{"workspace":"w","home":"/workspace","credentials":"/secrets","projects":[{"name":"x","url":"http://127.0.0.1:1/x"}]}`
	require.NoError(t, os.WriteFile(filepath.Join(root, workspaceagent.ConfigFile), []byte(config), 0o600))

	c, err := LoadConfig(filepath.Join(root, workspaceagent.ConfigFile))
	require.NoError(t, err)
	require.Equal(t, volume, c.Home, "commands in it do not pass through a link")
	require.Equal(t, filepath.Join(root, "secrets"), c.Credentials)
	var output bytes.Buffer
	require.Zero(t, Program([]string{"install", "/tools"}, &output, &output, "/termination-log"), output.String())
	require.FileExists(t, filepath.Join(root, "tools", workspaceagent.Program))
	require.Equal(t, statusFailed, Program([]string{"clone"}, &output, &output, "/termination-log"))
	reason, err := os.ReadFile(filepath.Join(root, "termination-log"))
	require.NoError(t, err)
	require.Contains(t, string(reason), "clone x from http://127.0.0.1:1/x")
	require.NotContains(t, environ(os.Environ(), c), workspaceagent.RootVariable+"="+root)
}

func TestFailedCloneIsReportedToKubernetesAndOthersAreCloned(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	log := filepath.Join(t.TempDir(), "termination-log")
	run := func(change func(*workspaceagent.Config)) int {
		configure(t, change)
		var stdout, stderr bytes.Buffer
		return Program([]string{"clone"}, &stdout, &stderr, log)
	}
	require.Zero(t, run(nil), "no projects")
	require.NoFileExists(t, log)
	config := `[{"name":"one","url":"` + server.URL + `/one.git"},{"name":"two","url":"` + server.URL + `/two.git"}]`
	require.Equal(t, statusFailed, run(func(c *workspaceagent.Config) {
		require.NoError(t, json.Unmarshal([]byte(config), &c.Projects))
	}))
	reason, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(reason), "clone one from "+server.URL+"/one.git: there is no such repository")
	require.Contains(t, string(reason), "clone two from ")
}

func TestAgentEndsWithTheCommandOfTheContainer(t *testing.T) {
	c := configure(t, func(c *workspaceagent.Config) {
		c.PostStart = []workspaceagent.Command{
			{Name: "fails", Line: "exit 1"},
			{Name: "writes", Line: `GREETING=hello; echo "$HOME $GREETING" > started`},
		}
	})
	path := os.Getenv(workspaceagent.ConfigVariable)
	logger := slog.New(slog.DiscardHandler)
	// The command waits for the last one of postStart.
	wait := `while [ ! -s "` + c.Home + `/started" ]; do sleep 0.05; done; exit 5`
	err := Run(t.Context(), path, "127.0.0.1:0", []string{"sh", "-c", wait}, logger)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 5, exit.ExitCode())
	started, err := os.ReadFile(filepath.Join(c.Home, "started"))
	require.NoError(t, err)
	require.Equal(t, c.Home+" hello\n", string(started))
	require.FileExists(t, filepath.Join(c.Home, workspaceagent.StateFolder, "ssh_host_ed25519_key"))
}

// TestFailuresOfTheCommandHaveTheStatusOfShells shows that those of the agent itself are reported to Kubernetes.
func TestFailuresOfTheCommandHaveTheStatusOfShells(t *testing.T) {
	c := configure(t, nil)
	t.Setenv(workspaceagent.ListenVariable, "127.0.0.1:0")
	log := filepath.Join(t.TempDir(), "termination-log")
	for _, run := range []struct {
		command []string
		status  int
		reason  string
	}{
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"sh", "-c", "exit 1"}, 1, ""},
		{[]string{c.Home}, 126, "start the command: fork/exec " + c.Home + ": permission denied"},
		{[]string{"no-such-program"}, 127, `start the command: exec: "no-such-program": executable file not found in $PATH`},
		{[]string{"/no/such/program"}, 127, "start the command: fork/exec /no/such/program: no such file or directory"},
	} {
		var output bytes.Buffer
		require.Equal(t, run.status, Program(append([]string{"run", "--"}, run.command...), &output, &output, log),
			"%s: %s", run.command, output.String())
		if run.reason == "" {
			require.NoFileExists(t, log, run.command)
			continue
		}
		reason, err := os.ReadFile(log)
		require.NoError(t, err)
		require.Equal(t, run.reason, string(reason))
	}
}

func TestTemporaryFilesHaveAFolderInEveryImage(t *testing.T) {
	usual, state := t.TempDir(), t.TempDir()
	folder, err := temporaryFolder(usual, state)
	require.NoError(t, err)
	require.Empty(t, folder)
	left, err := os.ReadDir(usual)
	require.NoError(t, err)
	require.Empty(t, left)

	missing := filepath.Join(usual, "missing")
	folder, err = temporaryFolder(missing, state)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(state, "tmp"), folder)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "left"), nil, 0o600))
	_, err = temporaryFolder(missing, state)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(folder, "left"), "a container starts without them")
	_, err = temporaryFolder(missing, missing+"\x00")
	require.Error(t, err)
}

func TestEnvironmentHasWhatImagesLack(t *testing.T) {
	c := workspaceagent.Config{Home: "/workspace"}
	container := []string{"PATH=/bin", "HOME=/", workspaceagent.ConfigVariable + "=x"}
	env := environ(container, c)
	require.NotEmpty(t, valueOf(env, "USER"))
	require.Equal(t, valueOf(env, "USER"), valueOf(env, "LOGNAME"))
	require.Equal(t, "/workspace", valueOf(env, "HOME"))
	require.Equal(t, "/bin", valueOf(env, "PATH"))
	require.Equal(t, "ada", valueOf(environ(append(container, "USER=ada"), c), "USER"), "the workspace names it")
}

// valueOf returns the value that a program sees.
func valueOf(environ []string, name string) string {
	command := exec.Command("sh", "-c", `printf %s "$`+name+`"`)
	command.Env = environ
	output, _ := command.Output()
	return string(output)
}

func TestCommandsOfTheWorkspace(t *testing.T) {
	folder := t.TempDir()
	configure(t, func(c *workspaceagent.Config) {
		c.Commands = []workspaceagent.Command{
			{Name: "build", Line: "cd \"" + folder + "\" || exit 1\necho built > output"}, {Name: "fails", Line: "exit 7"},
		}
	})
	run := func(arguments ...string) (status int, stdout, stderr string) {
		var out, errs bytes.Buffer
		status = Program(append([]string{"command"}, arguments...), &out, &errs, "")
		return status, out.String(), errs.String()
	}
	status, stdout, _ := run()
	require.Zero(t, status)
	require.Equal(t, "build\tcd \""+folder+"\" || exit 1; echo built > output\nfails\texit 7\n", stdout)
	status, _, _ = run("build")
	require.Zero(t, status)
	require.FileExists(t, filepath.Join(folder, "output"))
	status, _, _ = run("fails")
	require.Equal(t, 7, status)
	status, _, stderr := run("deploy")
	require.Equal(t, statusFailed, status)
	require.Contains(t, stderr, `there is no command "deploy": list all with workspace-agent command`)
}

func TestCommandOfTheContainerGetsSIGTERM(t *testing.T) {
	c := configure(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	line := `cd "` + c.Home + `"; trap 'echo ended > ended; exit 0' TERM; touch ready; while :; do sleep 0.05; done`
	go func() {
		ended <- Run(ctx, os.Getenv(workspaceagent.ConfigVariable), "127.0.0.1:0", []string{"sh", "-c", line},
			slog.New(slog.DiscardHandler))
	}()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(c.Home, "ready"))
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.FileExists(t, filepath.Join(c.Home, "ended"))
}

func TestAgentWithoutCommandRunsUntilItIsEnded(t *testing.T) {
	configure(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t,
		Run(ctx, os.Getenv(workspaceagent.ConfigVariable), "127.0.0.1:0", nil, slog.New(slog.DiscardHandler)))
}

// TestFirstProcessOfAContainer runs the program as the first process of a namespace, as in a container.
func TestFirstProcessOfAContainer(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not shown: only root may create a process namespace here")
	}
	program := filepath.Join(t.TempDir(), workspaceagent.Program)
	build := exec.Command("go", "build", "-o", program, "lockstep.internal/services/gateway/cmd/workspace-agent")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	configure(t, nil)
	t.Setenv(workspaceagent.ListenVariable, "127.0.0.1:0")
	// An orphan ends while the command runs: somebody must collect it, or it stays a zombie. Another one, with a session
	// of its own, is there when the command has ended.
	left := filepath.Join(t.TempDir(), "left")
	line := `(sh -c 'sleep 0.1 & exec true'); sleep 0.5; ps -eo stat= | grep -c '^Z'
		setsid sh -c 'trap "echo ended > \"$0\"; exit" TERM; echo runs > "$0"; while :; do sleep 0.05; done' "` + left + `" &
		until [ -s "` + left + `" ]; do sleep 0.05; done; exit 6`
	command := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--mount-proc",
		program, "run", "--", "sh", "-c", line)
	output, err = command.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 6, exit.ExitCode())
	require.Equal(t, "0\n", string(output), "no zombies")
	text, err := os.ReadFile(left)
	require.NoError(t, err)
	require.Equal(t, "ended\n", string(text), "it has got SIGTERM")
}
