package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// run executes a command line with no configuration but what is given.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), append([]string{"--client", filepath.Join(t.TempDir(), "none.yaml")}, args...), &out, &errs,
		"test")
	return code, out.String(), errs.String()
}

func TestUsageErrorsAndExitCodes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"ws list", 2, "start one with `lockstep up`"},
		{"--server http://127.0.0.1:1 ws list", 3, "--token-file"},
		{"ws lst", 2, `did you mean "list"`},
		{"wss", 2, `unknown command "wss", did you mean "ws"`},
		{"no such thing", 2, `unknown command "no such thing"`},
		{"help wss", 2, `unknown command "wss"`},
		{"help ws lst", 2, `unknown command "lst", did you mean "list"`},
		{"completion basch", 2, `unknown command "basch", did you mean "bash"`},
		{"ws create a b", 2, "wrong number of arguments, want at most NAME"},
		{"deploys list a/b c/d", 2, "wrong number of arguments, want at most WORKLOAD"},
		{"ws stop x --timeout soon", 2, `^lockstep: --timeout "soon" must be a duration such as 90s, 8h or 7d: see`},
		{"token create x --expires-in 1w", 2, `--expires-in "1w" must be a duration`},
		{"deploys get x/y --revision two", 2, `--revision "two" must be a number`},
		{"deploys list --since -2h", 2, "must be a time such as"},
		{"deploys list --since 99999999999d", 2, "must be a time such as"},
		{"ws get", 2, "want WORKSPACE"},
		{"ws update mine --wait", 2, "nothing to change, want one of --arg, .*--image, .*--remove-env, .*--volume: see"},
		{"ws update mine --cpu=", 2, "nothing to change, want one of"},
		{"ws list --nope", 2, "unknown flag: --nope"},
		{"ws list -o xml", 2, "must be table, json or yaml"},
		{"events tail", 2, "no NATS is configured"},
		{"replay workspace.> --pace slow", 2, "full or original"},
		{"replay workspace.> --from yesterday", 2, "RFC 3339|2026-01-02T15:04:05Z"},
		{
			"--nats-url nats://127.0.0.1:1 replay nothing.>", 13,
			"^lockstep: cannot reach NATS at nats://127.0.0.1:1: no program listens there\n$",
		},
		{"--server 127.0.0.1:8080 ws list", 2, `server "127.0.0.1:8080" must be a URL such as http://`},
		{"--deploys-server nonsense deploys list", 2, `deploys server "nonsense" must be a URL`},
		{"agent revoke x", 2, "no server is configured"},
		{"rebuild --check", 2, "no server is configured"},
		{"subscriber create", 2, "want NAME"},
		{"subscriber create ci", 2, "no server is configured"},
		{"subscriber revoke", 2, "want NAME"},
		{"rebuild deploys", 2, "no deploys service is configured"},
		{"rebuild state", 2, "want no arguments"},
		{"deploys list", 2, "start one with `lockstep up`"},
		{"deploys list web", 2, "must be NAMESPACE/KIND/NAME"},
		{"deploys list --state done", 2, "must be running, completed"},
		{"deploys list --change none", 2, "must be created, updated"},
		{"deploys list --since yesterday", 2, "2026-01-02T15:04:05Z"},
		{"deploys list --limit -1", 2, "must not be negative"},
		{"deploys get", 2, "want WORKLOAD or ROLLOUT"},
		{"deploys watch --ended 3", 2, "no deploys service is configured"},
		{"deploys resend chat", 2, "want SINK FACT"},
		{"deploys backfill chat --since x", 2, "2026-01-02T15:04:05Z"},
		{"--deploys-server http://127.0.0.1:1 deploys stats", 2, "no server is configured"},
		{"deploys clusters release", 2, "want CLUSTER"},
		{"deploys clusters release c --yes", 2, "no deploys service is configured"},
		{"deploys clusters all", 2, "want no arguments"},
		{"kube-config", 2, "want AGENT"},
		{"kube-config east", 2, "no relay is configured"},
		{"kube-credential", 2, "no server is configured"},
		{"up --kubeconfig /none", 2, "^lockstep: --kubeconfig: open /none: no such file or directory\n$"},
		{"up --nodes -1", 2, "^lockstep: --nodes -1 must not be negative\n$"},
		{"relay list", 2, "start one with `lockstep up`"},
		{"relay pods", 2, "want AGENT"},
		{"relay forward east", 2, "want AGENT TARGET"},
		{"relay forward east db --stdio --listen 127.0.0.1:1", 2, "either --listen or --stdio"},
		{"relay agents east --project 3", 2, "either an agent or --project"},
		{"--relay-server https://127.0.0.1:1 relay list", 2, "no server is configured"},
		{"replay", 2, "want SUBJECT"},
		{"replay --through state", 2, "must be deploys"},
		{"replay workspace.> --through deploys", 2, "must begin with observed"},
		{"dead list", 2, "no NATS is configured"},
		{"dead show", 2, "want SEQUENCE"},
		{"dead show x", 2, "must be a positive number"},
		{"dead retry", 2, "set either SEQUENCE… or --all"},
		{"dead retry 1 --all", 2, "set either SEQUENCE… or --all"},
		{"dead drop 1 --subject applied.>", 2, "set either SEQUENCE… or --all"},
		{"dead drop 0", 2, "must be a positive number"},
		{"dead drop 1", 2, "no server is configured"},
		{"dead retry --all", 2, "no server is configured"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := run(t, strings.Fields(tc.args)...)
			require.Equal(t, tc.code, code, stderr)
			require.Regexp(t, strings.ReplaceAll(tc.want, "`", "."), stderr)
			require.Empty(t, stdout)
		})
	}
}

func TestWrongClientConfigurationsAreExplained(t *testing.T) {
	t.Parallel()
	malformed := filepath.Join(t.TempDir(), "client.yaml")
	for content, want := range map[string]string{
		"servr: x": `is malformed: unknown field "servr"`,
		"x: [":     "is malformed: line 1: did not find expected node content",
	} {
		require.NoError(t, os.WriteFile(malformed, []byte(content), 0o600))
		code, _, stderr := run(t, "--client", malformed, "ws", "list")
		require.Equal(t, 2, code)
		require.Equal(t, "lockstep: the client configuration "+malformed+" "+want+"\n", stderr)
	}
	_, _, stderr := run(t, "--client", malformed+".none", "ws", "list")
	require.Contains(t, stderr, "server in "+malformed+".none, which does not exist")
}

func TestHelpAndCompletionWithoutConfiguration(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--help"},
		{"ws"},
		{"ws", "create", "--help"},
		{"completion", "bash"},
		{"--version"},
	} {
		code, stdout, stderr := run(t, args...)
		require.Zero(t, code, stderr)
		require.NotEmpty(t, stdout)
	}
}

func TestInitKeepsExistingFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, command := range []string{"nats", "state", "runners"} {
		code, stdout, stderr := run(t, command, "init", "--dir", filepath.Join(dir, command))
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "created")
		before := contents(t, dir)
		code, stdout, stderr = run(t, command, "init", "--dir", filepath.Join(dir, command))
		require.Zero(t, code, stderr)
		require.NotContains(t, stdout, "created")
		require.Equal(t, before, contents(t, dir))
	}
}

func TestStateInitCopiesTheAdminToken(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "admin.token")
	command := []string{"state", "init", "--dir", dir, "--admin-token-file", file}
	for range 2 {
		code, stdout, stderr := run(t, command...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, file)
		files := contents(t, filepath.Dir(file))
		require.Equal(t, map[string]string{file: contents(t, dir)[filepath.Join(dir, "admin.token")]}, files)
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
}

func TestNATSInitKeepsSettings(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nats")
	initialize := func(flags ...string) (int, string) {
		code, _, stderr := run(t, append([]string{"nats", "init", "--dir", dir}, flags...)...)
		return code, stderr
	}
	configured := func() string { return contents(t, dir)[natsauth.ConfigFile(dir)] }
	code, stderr := initialize("--cell", "eu", "--listen-host", "0.0.0.0", "--tls-cert-file", "/tls.crt", "--tls-key-file",
		"/tls.key", "--store-dir", "/streams", "--monitor-port", "8222", "--sync-interval", "1s")
	require.Zero(t, code, stderr)
	before := configured()
	require.Contains(t, before, `listen: "0.0.0.0:4222"`)

	code, stderr = initialize("--cell", "eu")
	require.Zero(t, code, stderr)
	require.Equal(t, before, configured(), "a run without flags changes nothing")

	code, stderr = initialize("--cell", "eu", "--tls-cert-file=", "--tls-key-file=", "--listen-port", "4333")
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "restart the NATS server")
	require.Contains(t, configured(), `listen: "0.0.0.0:4333"`)
	require.Contains(t, configured(), "/streams")
	require.NotContains(t, configured(), "/tls.crt", "an empty flag removes the setting")

	require.NoError(t, os.Remove(natsauth.SeedFile(dir, natsauth.PrincipalDeploys)))
	code, stderr = initialize("--cell", "eu")
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "restart the NATS server")

	before = configured()
	code, stderr = initialize()
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "the folder belongs to cell eu: repeat with --cell eu")
	require.Equal(t, before, configured())

	require.NoError(t, os.WriteFile(filepath.Join(dir, "init.json"), []byte("{"), 0o600))
	code, stderr = initialize("--cell", "eu")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "init.json: not written by nats init")
	require.Equal(t, before, configured())
}

func TestNATSInitSetsSyncInterval(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nats")
	configured := func(flags ...string) *server.Options {
		code, _, stderr := run(t, append([]string{"nats", "init", "--dir", dir}, flags...)...)
		require.Zero(t, code, stderr)
		options, err := server.ProcessConfigFile(natsauth.ConfigFile(dir))
		require.NoError(t, err)
		return options
	}
	require.Equal(t, 10*time.Second, configured().SyncInterval)
	require.True(t, configured("--sync-interval", "always").SyncAlways)
	require.True(t, configured().SyncAlways, "the next run keeps the setting")
	options := configured("--sync-interval", "1500ms")
	require.False(t, options.SyncAlways)
	require.Equal(t, 1500*time.Millisecond, options.SyncInterval)

	before := contents(t, dir)
	for _, value := range []string{"0", "0s", "-1ns", "never", "10", ""} {
		code, _, stderr := run(t, "nats", "init", "--dir", dir, "--sync-interval", value)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "must be always, or a duration above 0 such as 10s")
	}
	require.Equal(t, before, contents(t, dir))
}

func TestNATSInitConfiguresThreeServers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nats")
	code, stdout, stderr := run(t, "nats", "init", "--dir", dir, "--listen-host", "0.0.0.0",
		"--cluster", "nats-0=nats-0.nats,nats-1=nats-1.nats,nats-2=10.0.0.3:7222",
		"--cluster-tls-cert-file", "/tls.crt", "--cluster-tls-key-file", "/tls.key", "--cluster-tls-ca-file", "/ca.crt")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "nats-2.conf")
	files := contents(t, dir)
	require.NotContains(t, files, natsauth.ConfigFile(dir))
	first := files[filepath.Join(dir, "nats-0.conf")]
	require.Contains(t, first, `routes: ["nats://nats-1.nats:6222", "nats://10.0.0.3:7222"]`)
	require.Contains(t, first, "verify: true")

	code, _, stderr = run(t, "nats", "init", "--dir", dir)
	require.Zero(t, code, stderr)
	require.Equal(t, files, contents(t, dir), "a run without flags changes nothing")

	code, _, stderr = run(t, "nats", "init", "--dir", dir, "--cluster", "a=b:x,c=d,e=f")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, `--cluster: "a=b:x" is not NAME=HOST:PORT`)
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		out[path] = string(raw)
		return err
	}))
	return out
}

func TestOverridesFromFlags(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	o := overrides{
		image:       "i:1",
		env:         []string{"A=1=2"},
		secretEnv:   []string{"TOKEN=" + secret},
		secretFiles: []string{"key=" + secret},
		ports:       []string{"http=8080"},
	}
	m, err := o.message()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "1=2"}, m.GetEnv())
	require.Equal(t, "hunter2", m.GetSecretEnv()["TOKEN"], "a variable has no line break at its end")
	require.Equal(t, "hunter2\n", string(m.GetSecretFiles()["key"]), "a file is kept as it is")
	require.Equal(t, int32(8080), m.GetPorts()[0].GetNumber())
	for _, bad := range []overrides{
		{env: []string{"A"}},
		{env: []string{"=1"}},
		{secretEnv: []string{"A=/does/not/exist"}},
		{ports: []string{"http=x"}},
	} {
		_, err := bad.message()
		require.Error(t, err)
	}
}

func TestReference(t *testing.T) {
	t.Parallel()
	require.Equal(t, "mine", reference("mine").GetName())
	require.Equal(t, "01936f5e-8f3a-7c55-9b1c-0242ac120002", reference("01936f5e-8f3a-7c55-9b1c-0242ac120002").GetId())
}

func TestTextAndAges(t *testing.T) {
	t.Parallel()
	require.Equal(t, "CreationRequested",
		enumName(statev1.ActualState_ACTUAL_STATE_CREATION_REQUESTED.String(), "ACTUAL_STATE_"))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.Equal(t, "never", ageAt(now, nil))
	for want, d := range map[string]time.Duration{
		"0s": -time.Second, "90s": 90 * time.Second, "5m": 5 * time.Minute,
		"3h": 3 * time.Hour, "4d": 100 * time.Hour,
	} {
		require.Equal(t, want, ageAt(now, timestamppb.New(now.Add(-d))))
	}
}

func TestParseTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Time{
		"": {}, "2h": now.Add(-2 * time.Hour), "7d": now.Add(-7 * 24 * time.Hour), "1d12h": now.Add(-36 * time.Hour),
		"2026-01-01T00:00:00Z": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got, err := parseTime("--from", value, now)
		require.NoError(t, err)
		require.True(t, want.Equal(got), value)
	}
}

func TestEachFlagWithADurationTakesDays(t *testing.T) {
	t.Parallel()
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "duration" {
				require.NoError(t, f.Value.Set("7d"), "%s --%s", c.CommandPath(), f.Name)
			}
		})
		for _, child := range c.Commands() {
			check(child)
		}
	}
	check((&app{stdout: io.Discard, stderr: io.Discard}).root(""))
}

func TestEventFilterAndSummary(t *testing.T) {
	t.Parallel()
	e, err := event.New(
		event.Attributes{
			Type:    "dev.lockstep.workspace.state_changed.v1",
			Source:  "/s",
			Subject: "w1",
			ID:      "1",
			Time:    time.Now(),
		},
		map[string]any{
			"workspace_id":     "w1",
			"name":             "mine",
			"from":             "starting",
			"to":               "failed",
			"reason":           "ImagePullBackOff",
			"unexpected":       true,
			"desired_revision": 3,
		},
	)
	require.NoError(t, err)
	for filter, want := range map[*eventFilter]bool{
		{}:                                 true,
		{types: []string{"state_changed"}}: true,
		{types: []string{"workspace.*"}}:   true,
		{types: []string{"observed.*", "dev.lockstep.workspace.state_changed.v1"}}: true,
		{types: []string{"changed"}}: false,
		{workspace: "w1"}:            true,
		{workspace: "w2"}:            false,
	} {
		require.Equal(t, want, filter.wants("lockstep.local.workspace.1.w1.state_changed", e), "%+v", *filter)
	}
	raw, err := event.MarshalStructured(e)
	require.NoError(t, err)
	require.Equal(t, "name=mine from=starting to=failed desired_revision=3 reason=ImagePullBackOff unexpected",
		summary(raw))
	require.Empty(t, summary([]byte("no json")))
}

func TestDeadLetterOutput(t *testing.T) {
	t.Parallel()
	l := deadletter.Letter{
		Sequence:       3,
		Stored:         time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Service:        "state",
		Consumer:       "applied",
		Reason:         "no good",
		Subject:        "lockstep.local.applied.7.w",
		Stream:         "APPLIED",
		StreamSequence: 12,
		Header:         map[string][]string{"ce-id": {"1"}},
		Data:           []byte(`{"a":1}`),
	}
	require.Equal(t, `Sequence     3
Stored       2026-01-02T03:04:05Z
Service      state
Consumer     applied
Reason       no good
Subject      lockstep.local.applied.7.w
Stream       APPLIED, sequence 12
Header       ce-id: 1

{
  "a": 1
}
`, letterText(l))
	require.JSONEq(t, `{"a":1}`, string(letterOf(l, true).Data))
	require.Nil(t, letterOf(l, false).Data)
	l.Data = []byte("\xff no json")
	require.Contains(t, letterText(l), `"\xff no json"`)
	require.Equal(t, l.Data, letterOf(l, true).DataBase64)
	l.Data, l.Omitted = nil, 99
	require.Contains(t, letterText(l), "the data of 99 bytes was too large to be stored")
	l.OmittedHeaders = 2
	require.Contains(t, letterText(l), "2 headers could not be stored")
}

func TestOrphanArgumentsAndConfirmation(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t\n"), 0o600))
	for args, want := range map[string]string{
		"ws adopt 7/mine":                   "must be AGENT/NAMESPACE/NAME",
		"ws delete-orphan 7/ws-7-mine/":     "must be AGENT/NAMESPACE/NAME",
		"ws delete-orphan 7/ws-7-mine/mine": "not confirmed, nothing changed",
	} {
		code, _, stderr := run(
			t,
			append([]string{"--server", "http://127.0.0.1:1", "--token-file", token}, strings.Fields(args)...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, want)
	}
}
