package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestWorkspacesCommands(t *testing.T) {
	s := shared.Parallel(t)

	cli := s.CLI()
	place := []string{"--project", strconv.FormatInt(s.ProjectID, 10), "--agent", strconv.FormatInt(s.AgentID, 10)}
	secret := s.Secrets.New()
	secretFile := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secretFile, []byte(secret+"\n"), 0o600))

	out := cli.OK(append([]string{
		"ws", "create", "by-command", "-o", "json", "--image", fixture.GoodImage, "--env", "EDITOR=vi", "--port", "web=8080",
		"--secret-env", "TOKEN=" + secretFile, "--secret-file", "key=" + secretFile,
	}, place...)...)
	w := s.WorkspaceOf(fixture.ParseOutput(t, out, &statev1.CreateWorkspaceResponse{}).GetWorkspace())
	w.AwaitRunning()
	require.Equal(t, []string{secret}, w.SecretValues("-env"))
	require.Equal(t, []string{secret + "\n"}, w.SecretValues("-files"))

	require.Contains(t, cli.OK("ws", "get", "by-command"), "Running")
	got := fixture.ParseOutput(t, cli.OK("ws", "get", w.ID, "-o", "yaml"), &statev1.GetWorkspaceResponse{}).GetWorkspace()
	require.Equal(t, w.ID, got.GetId())
	require.Equal(t, map[string]string{"EDITOR": "vi"}, got.GetSpec().GetEnv())
	require.Regexp(t, `(?m)^by-command +Running +Running`, cli.OK("ws", "list"))
	listed := fixture.ParseOutput(t, cli.OK("ws", "list", "-o", "json"), &statev1.ListWorkspacesResponse{})
	require.Contains(t, namesOf(listed.GetWorkspaces()), "by-command")

	cli.OK("ws", "stop", "by-command")
	w.AwaitStopped()
	cli.OK("ws", "start", "by-command")
	w.AwaitRunning()
	pod := w.PodUID()
	cli.OK("ws", "restart", "by-command")
	w.AwaitNewPod(pod)
	w.AwaitRestarted()
	cli.OK("ws", "update", "by-command", "--image", fixture.OtherGoodImage)
	w.AwaitRunning()
	require.Eventually(t, func() bool { // events are published after the change is stored
		return fixture.ContainsAll(cli.OK("ws", "events", "by-command"), []string{
			"workspace.created", "workspace.state_changed", "to=stopped", "workspace.desired_state_changed",
			"to=restart_requested", "cause=restart_completed",
		})
	}, fixture.Timeout, fixture.PollInterval)
	listedEvents := fixture.EventIDs(
		fixture.ParseOutput(t, cli.OK("ws", "events", "by-command", "-o", "json"),
			&statev1.ListWorkspaceEventsResponse{}).GetEvents(),
	)
	require.Equal(t, listedEvents, w.EventIDs()[:len(listedEvents)])
	cli.OK("ws", "delete", "by-command", "--yes", "--wait")
	w.AwaitTerminated()
	require.NotContains(t, cli.OK("ws", "list"), "by-command")
	require.Contains(t, cli.OK("ws", "list", "--terminated"), "by-command")

	shown := cli.OK(
		append([]string{"ws", "create", "by-command-waiting", "--wait", "--image", fixture.GoodImage}, place...)...)
	require.Contains(t, lastLine(shown), "Running")

	t.Run("agents", func(t *testing.T) { commandLineRegistersAgents(s.In(t), cli.In(t)) })
	t.Run("tokens", func(t *testing.T) { commandLineMakesTokens(s.In(t), cli.In(t)) })
	t.Run("nats", func(t *testing.T) { commandLineConfiguresNATS(cli.In(t)) })
}

func commandLineRegistersAgents(s *fixture.System, cli fixture.CLI) {
	t := s.T
	project := strconv.FormatInt(s.NewProject("by-command"), 10)
	file := filepath.Join(t.TempDir(), "agent.json")
	agent := fixture.ParseOutput(t,
		cli.OK("agent", "register", "elsewhere", "--project", project, "--credentials", file, "-o", "json"), &statev1.Agent{})
	credentials, err := natsauth.ReadAgentCredentials(file)
	require.NoError(t, err)
	s.Secrets.Add(credentials.Token)
	s.Secrets.Add(credentials.CurveSeed)
	require.Equal(t, agent.GetId(), credentials.AgentID)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Regexp(t, `(?m)^`+strconv.FormatInt(agent.GetId(), 10)+` +elsewhere .* active$`, cli.OK("agent", "list"))
	listed := fixture.ParseOutput(t, cli.OK("agent", "list", "-o", "yaml", "--project", project),
		&statev1.ListAgentsResponse{})
	require.Len(t, listed.GetAgents(), 1)
	cli.Fails(6, "agent", "register", "another", "--project", project, "--credentials", file)
	id := strconv.FormatInt(agent.GetId(), 10)
	rotated := fixture.ParseOutput(t, cli.OK("agent", "rotate", "elsewhere", "--credentials", file, "-o", "json"),
		&statev1.Agent{})
	require.WithinDuration(t, time.Now().Add(24*time.Hour), rotated.GetPreviousTokenValidUntil().AsTime(), fixture.Timeout)
	renewed, err := natsauth.ReadAgentCredentials(file)
	require.NoError(t, err)
	s.Secrets.Add(renewed.Token)
	require.NotEqual(t, credentials.Token, renewed.Token)
	credentials.Token = renewed.Token
	require.Equal(t, credentials, renewed, "only the token is new")
	require.Contains(t, cli.OK("agent", "get", id), "2, the older one until")
	require.Contains(t, cli.Fails(8, "agent", "rotate", id, "--credentials", file), "--valid-for 0s")
	cli.OK("agent", "revoke", id)
	require.Contains(t, cli.OK("agent", "list", "--project", project), "revoked")
}

func commandLineMakesTokens(s *fixture.System, cli fixture.CLI) {
	t := s.T
	value := strings.TrimSpace(cli.OK("token", "create", "for-a-script", "--expires-in", "1h"))
	s.Secrets.Add(value)
	script := cli.With("LOCKSTEP_TOKEN=" + value)
	require.Contains(t, script.OK("token", "list"), "for-a-script")
	var id int64
	tokens := fixture.ParseOutput(t, cli.OK("token", "list", "-o", "json"), &statev1.ListTokensResponse{})
	for _, token := range tokens.GetTokens() {
		if token.GetName() == "for-a-script" {
			id = token.GetId()
		}
	}
	child := strings.TrimSpace(script.OK("token", "create", "for-another-script", "--expires-in", "30m"))
	s.Secrets.Add(child)
	another := cli.With("LOCKSTEP_TOKEN=" + child)
	require.Regexp(t, `for-another-script +admin +`+strconv.FormatInt(id, 10), another.OK("token", "list"))
	require.Regexp(t, `(?s)for-a-script.*for-another-script`, cli.OK("token", "revoke", strconv.FormatInt(id, 10)))
	require.Contains(t, another.Fails(3, "token", "list"), "token")
	require.Contains(t, script.Fails(3, "token", "list"), "token")
	require.Regexp(t, `for-a-script .* revoked`, cli.OK("token", "list"))
}

func commandLineConfiguresNATS(cli fixture.CLI) {
	t := cli.T
	dir := filepath.Join(t.TempDir(), "nats")
	require.Contains(t, cli.OK("nats", "init", "--dir", dir), "created")
	before := filesOf(t, dir)
	require.NotEmpty(t, before)
	require.NotContains(t, cli.OK("nats", "init", "--dir", dir), "created")
	require.Equal(t, before, filesOf(t, dir), "keys are kept")
	cli.OK("nats", "init", "--dir", dir, "--listen-port", "4333")
	for path, content := range filesOf(t, dir) {
		if filepath.Ext(path) == ".seed" {
			require.Equal(t, before[path], content, "%s is kept", path)
		}
	}
}

func TestWorkspacesCommandErrors(t *testing.T) {
	s := shared.Parallel(t)

	cli := s.CLI()
	place := []string{"--project", strconv.FormatInt(s.ProjectID, 10), "--agent", strconv.FormatInt(s.AgentID, 10)}
	create := func(name string) []string { return append([]string{"ws", "create", name}, place...) }

	require.Contains(t, cli.Fails(2, "ws", "get"), "WORKSPACE")
	require.Contains(t, cli.Fails(2, "ws", "stopp", "x"), "unknown command")
	require.Contains(t, cli.Fails(2, "ws", "list", "--nonsense"), "--nonsense")
	require.Contains(t, cli.Fails(2, "ws", "list", "-o", "xml"), "table, json or yaml")
	require.Contains(t, cli.Fails(2, create("Not-A-Name")...), "is not a workspace name")
	require.Contains(t, cli.Fails(2, "replay", "nonsense.>"), "workspace.>")
	require.Contains(t, fixture.NewCLI(t).Fails(2, "ws", "list"), "no server is configured")
	require.Contains(t, fixture.NewCLI(t).Fails(3, "ws", "list", "--server", s.APIURL()),
		"no personal access token is configured")
	cli.With("LOCKSTEP_TOKEN="+"nonsense").Fails(3, "ws", "list")
	require.Contains(t, cli.Fails(5, "ws", "get", "nobody-has-this"), "nobody-has-this")
	require.Contains(t, cli.Fails(13, "ws", "list", "--server", "http://127.0.0.1:1"), "127.0.0.1:1")

	w := s.Create("taken", fixture.GoodImage)
	require.Contains(t, cli.Fails(6, create("taken")...), "taken")
	reader := cli.With("LOCKSTEP_TOKEN=" + s.NewUser("reader", s.ProjectID, statev1.Role_ROLE_READER).Token)
	require.Contains(t, reader.OK("ws", "get", "taken"), "taken")
	reader.Fails(4, "ws", "stop", "taken")
	cli.OK("ws", "delete", "taken", "--yes")
	require.Contains(t, cli.Fails(9, "ws", "start", w.ID), "permanent")
}

func TestWorkspacesFollow(t *testing.T) {
	s := shared.Parallel(t)

	cli := s.CLI()
	tail := cli.Start("events", "tail", "workspace.>", "--type", "state_changed")
	tail.AwaitLine("listening on")
	raw := cli.Start("events", "tail", "-o", "json", "workspace.>")
	raw.AwaitLine("listening on")
	w := s.Create("followed", fixture.GoodImage)
	watch := cli.Start("ws", "watch", "followed")
	watch.AwaitLine("followed", "Running")
	tail.AwaitLine("workspace.state_changed", "name=followed", "to=running")
	var event struct {
		Type string `json:"type"`
		Data struct {
			WorkspaceID string `json:"workspace_id"`
		} `json:"data"`
	}
	require.NoError(t, json.Unmarshal([]byte(raw.AwaitLine("workspace.created", w.ID)), &event))
	require.Equal(t, w.ID, event.Data.WorkspaceID)
	watched := cli.Start("ws", "watch", "-o", "json", "followed")
	first := fixture.ParseOutput(t, watched.AwaitLine(`"followed"`), &statev1.WatchWorkspacesResponse{})
	require.True(t, first.GetInitial())
	w.Stop()
	watch.AwaitLine("followed", "Stopped")
	tail.AwaitLine("name=followed", "to=stopped")
	for _, command := range []*fixture.Process{tail, raw, watch, watched} {
		require.Zero(t, command.Interrupt(), "Ctrl-C is the ordinary end")
	}
}

func namesOf(workspaces []*statev1.Workspace) []string {
	names := make([]string, len(workspaces))
	for i, w := range workspaces {
		names[i] = w.GetName()
	}
	return names
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// filesOf returns the contents of a folder's files by path.
func filesOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		found[path] = string(raw)
		return err
	}))
	return found
}
