package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// printed reads what a command printed for programs.
func printed[M proto.Message](t *testing.T, out string, into M) M {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(out)) // JSON is YAML too
	require.NoError(t, err)
	require.NoError(t, protojson.Unmarshal(raw, into))
	return into
}

// named is a handle on a workspace that a command made.
func (s *system) named(made *statev1.Workspace) *workspace {
	s.t.Helper()
	return &workspace{
		t: s.t, s: s, id: made.GetId(), name: made.GetName(), namespace: made.GetNamespace(), project: made.GetProjectId(), agent: made.GetAgentId(),
	}
}

func commandLineDoesAllOfIt(s *system) {
	t := s.t
	cli := s.commandLine()
	place := []string{"--project", strconv.FormatInt(s.project, 10), "--agent", strconv.FormatInt(s.agent, 10)}
	secret := s.secrets.make()
	secretFile := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secretFile, []byte(secret+"\n"), 0o600))

	out := cli.ok(append([]string{
		"ws", "create", "by-command", "-o", "json", "--image", goodImage, "--env", "EDITOR=vi", "--port", "web=8080",
		"--secret-env", "TOKEN=" + secretFile, "--secret-file", "key=" + secretFile,
	}, place...)...)
	w := s.named(printed(t, out, &statev1.CreateWorkspaceResponse{}).GetWorkspace())
	w.untilRunning()
	require.Equal(t, []string{secret}, w.secretValues("-env"))
	require.Equal(t, []string{secret + "\n"}, w.secretValues("-files"))

	require.Contains(t, cli.ok("ws", "get", "by-command"), "Running")
	got := printed(t, cli.ok("ws", "get", w.id, "-o", "yaml"), &statev1.GetWorkspaceResponse{}).GetWorkspace()
	require.Equal(t, w.id, got.GetId())
	require.Equal(t, map[string]string{"EDITOR": "vi"}, got.GetSpec().GetEnv())
	require.Regexp(t, `(?m)^by-command +Running +Running`, cli.ok("ws", "list"))
	listed := printed(t, cli.ok("ws", "list", "-o", "json"), &statev1.ListWorkspacesResponse{})
	require.Contains(t, namesOf(listed.GetWorkspaces()), "by-command")

	cli.ok("ws", "stop", "by-command")
	w.untilStopped()
	cli.ok("ws", "start", "by-command")
	w.untilRunning()
	pod := w.podUID()
	cli.ok("ws", "restart", "by-command")
	w.awaitPodOtherThan(pod)
	w.untilRestarted()
	cli.ok("ws", "update", "by-command", "--image", otherGoodImage)
	w.untilRunning()
	told := cli.ok("ws", "events", "by-command")
	for _, words := range []string{"workspace.created", "workspace.state_changed", "to=stopped", "workspace.desired_state_changed", "to=restart_requested", "cause=restart_completed"} {
		require.Contains(t, told, words)
	}
	listedEvents := idsOf(printed(t, cli.ok("ws", "events", "by-command", "-o", "json"), &statev1.ListWorkspaceEventsResponse{}).GetEvents())
	require.Equal(t, listedEvents, w.history()[:len(listedEvents)])
	cli.ok("ws", "delete", "by-command")
	w.untilTerminated()
	require.NotContains(t, cli.ok("ws", "list"), "by-command")
	require.Contains(t, cli.ok("ws", "list", "--terminated"), "by-command")

	shown := cli.ok(append([]string{"ws", "create", "by-command-waiting", "--wait", "--image", goodImage}, place...)...)
	require.Contains(t, lastLine(shown), "Running")

	t.Run("agents", func(t *testing.T) { commandLineRegistersAgents(s.in(t), cli.in(t)) })
	t.Run("tokens", func(t *testing.T) { commandLineMakesTokens(s.in(t), cli.in(t)) })
	t.Run("nats", func(t *testing.T) { commandLineConfiguresNATS(cli.in(t)) })
}

func commandLineRegistersAgents(s *system, cli commandLine) {
	t := s.t
	project := strconv.FormatInt(s.newProject("by-command"), 10)
	file := filepath.Join(t.TempDir(), "agent.json")
	agent := printed(t, cli.ok("agent", "register", "elsewhere", "--project", project, "--credentials", file, "-o", "json"), &statev1.Agent{})
	credentials, err := natsauth.ReadAgentCredentials(file)
	require.NoError(t, err)
	s.secrets.add(credentials.Token)
	s.secrets.add(credentials.CurveSeed)
	require.Equal(t, agent.GetId(), credentials.AgentID)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Regexp(t, `(?m)^`+strconv.FormatInt(agent.GetId(), 10)+` +elsewhere .* active$`, cli.ok("agent", "list"))
	listed := printed(t, cli.ok("agent", "list", "-o", "yaml", "--project", project), &statev1.ListAgentsResponse{})
	require.Len(t, listed.GetAgents(), 1)
	cli.fails(6, "agent", "register", "another", "--project", project, "--credentials", file)
	cli.ok("agent", "revoke", strconv.FormatInt(agent.GetId(), 10))
	require.Contains(t, cli.ok("agent", "list", "--project", project), "revoked")
}

func commandLineMakesTokens(s *system, cli commandLine) {
	t := s.t
	value := strings.TrimSpace(cli.ok("token", "create", "for-a-script", "--expires-in", "1h"))
	s.secrets.add(value)
	script := cli.with("LOCKSTEP_TOKEN=" + value)
	require.Contains(t, script.ok("token", "list"), "for-a-script")
	var id int64
	for _, token := range printed(t, cli.ok("token", "list", "-o", "json"), &statev1.ListTokensResponse{}).GetTokens() {
		if token.GetName() == "for-a-script" {
			id = token.GetId()
		}
	}
	cli.ok("token", "revoke", strconv.FormatInt(id, 10))
	require.Contains(t, script.fails(3, "token", "list"), "token")
	require.Regexp(t, `for-a-script .* revoked`, cli.ok("token", "list"))
}

func commandLineConfiguresNATS(cli commandLine) {
	t := cli.t
	dir := filepath.Join(t.TempDir(), "nats")
	require.Contains(t, cli.ok("nats", "init", "--dir", dir), "created")
	before := filesOf(t, dir)
	require.NotEmpty(t, before)
	require.NotContains(t, cli.ok("nats", "init", "--dir", dir), "created")
	require.Equal(t, before, filesOf(t, dir), "keys are kept")
	cli.ok("nats", "init", "--dir", dir, "--listen-port", "4333")
	for path, content := range filesOf(t, dir) {
		if filepath.Base(path) != "nats-server.conf" {
			require.Equal(t, before[path], content, "%s is kept", path)
		}
	}
}

func commandLineTellsWhatIsWrong(s *system) {
	t := s.t
	cli := s.commandLine()
	place := []string{"--project", strconv.FormatInt(s.project, 10), "--agent", strconv.FormatInt(s.agent, 10)}
	create := func(name string) []string { return append([]string{"ws", "create", name}, place...) }

	require.Contains(t, cli.fails(2, "ws", "get"), "WORKSPACE")
	require.Contains(t, cli.fails(2, "ws", "stopp", "x"), "unknown command")
	require.Contains(t, cli.fails(2, "ws", "list", "--nonsense"), "--nonsense")
	require.Contains(t, cli.fails(2, "ws", "list", "-o", "xml"), "table, json or yaml")
	require.Contains(t, cli.fails(2, create("Not-A-Name")...), "a-z, 0-9")
	require.Contains(t, cli.fails(2, "replay", "nonsense.>"), "workspace.>")
	require.Contains(t, newCommandLine(t).fails(2, "ws", "list"), "no server is configured")
	require.Contains(t, newCommandLine(t).fails(3, "ws", "list", "--server", s.APIURL()), "no personal access token is configured")
	cli.with("LOCKSTEP_TOKEN="+"nonsense").fails(3, "ws", "list")
	require.Contains(t, cli.fails(5, "ws", "get", "nobody-has-this"), "nobody-has-this")
	require.Contains(t, cli.fails(13, "ws", "list", "--server", "http://127.0.0.1:1"), "127.0.0.1:1")

	w := s.create("taken", goodImage)
	require.Contains(t, cli.fails(6, create("taken")...), "taken")
	reader := s.reader()
	require.Contains(t, cli.with("LOCKSTEP_TOKEN="+reader).ok("ws", "get", "taken"), "taken")
	cli.with("LOCKSTEP_TOKEN="+reader).fails(4, "ws", "stop", "taken")
	cli.ok("ws", "delete", "taken")
	require.Contains(t, cli.fails(9, "ws", "start", w.id), "permanent")
}

// reader makes a user who may look and touch nothing, and gives the user's token.
func (s *system) reader() string {
	s.t.Helper()
	ctx := s.t.Context()
	user, err := s.api.Directory.CreateUser(ctx, connect.NewRequest(&statev1.CreateUserRequest{Username: "reader"}))
	require.NoError(s.t, err)
	_, err = s.api.Directory.PutMembership(ctx, connect.NewRequest(&statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: user.Msg.GetUser().GetId(), Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: s.project, Role: statev1.Role_ROLE_READER,
	}}))
	require.NoError(s.t, err)
	token, err := s.api.Tokens.CreateToken(ctx, connect.NewRequest(&statev1.CreateTokenRequest{Name: "reads", UserId: user.Msg.GetUser().GetId()}))
	require.NoError(s.t, err)
	s.secrets.add(token.Msg.GetValue())
	return token.Msg.GetValue()
}

func commandLineFollows(s *system) {
	t := s.t
	cli := s.commandLine()
	tail := cli.begin("events", "tail", "workspace.>", "--type", "state_changed")
	tail.line("listening on")
	raw := cli.begin("events", "tail", "-o", "json", "workspace.>")
	raw.line("listening on")
	w := s.create("followed", goodImage)
	watch := cli.begin("ws", "watch", "followed")
	watch.line("followed", "Running")
	tail.line("workspace.state_changed", "name=followed", "to=running")
	var event struct {
		Type string `json:"type"`
		Data struct {
			WorkspaceID string `json:"workspace_id"`
		} `json:"data"`
	}
	require.NoError(t, json.Unmarshal([]byte(raw.line("workspace.created", w.id)), &event))
	require.Equal(t, w.id, event.Data.WorkspaceID)
	watched := cli.begin("ws", "watch", "-o", "json", "followed")
	first := printed(t, watched.line(`"followed"`), &statev1.WatchWorkspacesResponse{})
	require.True(t, first.GetInitial())
	w.stop()
	watch.line("followed", "Stopped")
	tail.line("name=followed", "to=stopped")
	for _, command := range []*running{tail, raw, watch, watched} {
		require.Zero(t, command.interrupt(), "Ctrl-C is the ordinary end")
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

// filesOf are the contents of a folder's files by path.
func filesOf(t *testing.T, dir string) map[string]string {
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
