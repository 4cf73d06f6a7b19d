package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// receiver is a webhook that counts deliveries by event.
type receiver struct {
	*httptest.Server

	mu  sync.Mutex
	got map[string]int
}

func receive(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{got: map[string]int{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got[request.Header.Get("Webhook-Id")]++
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) times(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[id]
}

// TestDeploysCommands uses the commands for rollouts, sinks and subscribers.
func TestDeploysCommands(t *testing.T) {
	t.Parallel()
	hook, dir := receive(t), t.TempDir()
	sinks := filepath.Join(dir, "sinks.yaml")
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"), 0o600))
	content := "hook:\n  type: webhook\n  backfill: true\n  network: {allow_private: true}\n" +
		"  webhook: {url: '" + hook.URL + "', secret_file: " + secret + "}\n"
	require.NoError(t, os.WriteFile(sinks, []byte(content), 0o600))
	configure := func(_ string, config any) {
		if cfg, is := config.(*deploys.Config); is {
			cfg.SinksFile = sinks
		}
	}
	s := fixture.StartWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: configure})
	cli := s.CLI()
	watch := cli.Start("deploys", "watch", "--ended", "100")
	w := s.NewDeployment("commanded", 2)
	watch.AwaitLine("commanded/deployment/web", "completed")
	w.SetImage(fixture.SecondImage)
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	watch.AwaitLine("commanded/deployment/web", "r2", "completed")

	s.Sequence(
		fixture.Case{
			Name: "rollouts are listed, shown and counted",
			Test: func(s *fixture.System) { commandsShowRollouts(s, cli.In(s.T)) },
		},
		fixture.Case{
			Name: "sinks are shown, reset and resent",
			Test: func(s *fixture.System) { commandsKeepSinks(s, cli.In(s.T), hook) },
		},
		fixture.Case{
			Name: "subscribers are created and revoked",
			Test: func(s *fixture.System) { commandsMakeSubscribers(s, cli.In(s.T)) },
		},
		fixture.Case{Name: "missing permissions are reported", Test: func(s *fixture.System) { commandsRefuse(cli.In(s.T)) }},
	)
	require.Zero(t, watch.Interrupt())
}

func commandsShowRollouts(s *fixture.System, cli fixture.CLI) {
	t := s.T
	require.Regexp(t, `commanded/deployment/web +2 +updated +completed`, cli.OK("deploys", "list", "-n", "commanded"))
	list := fixture.ParseOutput(t, cli.OK("deploys", "list", "commanded/web", "-o", "yaml"),
		&deploysv1.ListRolloutsResponse{}).GetRollouts()
	require.Len(t, list, 2)
	shown := fixture.ParseOutput(t, cli.OK("deploys", "get", list[1].GetId(), "-o", "json"),
		&deploysv1.GetRolloutResponse{})
	require.EqualValues(t, 1, shown.GetRollout().GetRevision())
	require.Equal(t, "started", shown.GetFacts()[0].GetFact())
	require.Contains(t, cli.OK("deploys", "get", "commanded/web", "--revision", "1"), list[1].GetId())
	require.Regexp(t, `commanded/deployment/web +2 `, cli.OK("deploys", "stats", "--since", "1h"))
	require.Contains(t, cli.Fails(5, "deploys", "get", "commanded/none"),
		"a rollout of deployment commanded/none does not exist")
	require.Contains(t, cli.Fails(5, "deploys", "get", "commanded/web", "--revision", "9"), "does not exist")
	require.Contains(t, cli.Fails(2, "deploys", "stats", "--since", "1h", "--until", "2h"), "must be before")
}

func commandsKeepSinks(s *fixture.System, cli fixture.CLI, hook *receiver) {
	t := s.T
	facts := fixture.ParseOutput(t, cli.OK("deploys", "get", "commanded/web", "-o", "json"),
		&deploysv1.GetRolloutResponse{}).GetFacts()
	first := facts[0].GetId()
	sent := func(times int) {
		t.Helper()
		require.Eventually(t, func() bool { return hook.times(first) == times }, fixture.Timeout, fixture.PollInterval,
			"%d times", times)
	}
	sent(1)
	noLag := regexp.MustCompile(`(?m)^hook +webhook +\d+ +0 `)
	require.Eventually(t, func() bool { return noLag.MatchString(cli.OK("deploys", "sinks")) }, fixture.Timeout,
		fixture.PollInterval)
	cli.OK("deploys", "resend", "hook", first)
	sent(2)
	// A backfill skips facts whose delivery is recorded after its start.
	awaitAcknowledged(s, topology.StreamSinks, "sink-hook")
	cli.OK("deploys", "backfill", "hook")
	sent(3)
	require.Contains(t, cli.Fails(5, "deploys", "resend", "hook", "none"), `fact "none" does not exist`)
	require.Contains(t, cli.Fails(5, "deploys", "resend", "none", first), "none")
	require.Contains(t, cli.Fails(5, "deploys", "backfill", "none"), "none")
	require.Contains(t, cli.OK("deploys", "sinks", "--manual"), "webhook.secret_file")
}

// awaitAcknowledged waits until a consumer has acknowledged every message.
func awaitAcknowledged(s *fixture.System, stream, consumer string) {
	s.T.Helper()
	fixture.AwaitCluster(s.T, consumer+" acknowledges "+stream, func(ctx context.Context) (bool, error) {
		c, err := s.JS.Consumer(ctx, stream, consumer)
		return err == nil && c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 0, err
	})
}

func commandsMakeSubscribers(s *fixture.System, cli fixture.CLI) {
	t := s.T
	file := filepath.Join(t.TempDir(), "ci.json")
	out := cli.OK("subscriber", "create", "ci", "--credentials", file, "--filter", "deploy.*.commanded.>",
		"--from-beginning", "-o", "json")
	made := fixture.ParseOutput(t, out, &statev1.Subscriber{})
	require.Equal(t, topology.SubscriberConsumer("ci"), made.GetConsumer())
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	var credentials struct {
		Password string `json:"password"`
	}
	require.NoError(t, json.Unmarshal(raw, &credentials))
	require.NotEmpty(t, credentials.Password)
	s.Secrets.Add(credentials.Password)

	require.Regexp(t, `(?m)^ci +\S*deploy\.\*\.commanded\.> .* active$`, cli.OK("subscriber", "list"))
	require.Contains(t, cli.Fails(6, "subscriber", "create", "other", "--credentials", file), "already exists")
	require.Contains(t, cli.Fails(6, "subscriber", "create", "ci", "--credentials", file+".2"), "ci")
	require.NoFileExists(t, file+".2")
	require.Contains(t, cli.Fails(2, "subscriber", "create", "wide", "--credentials", file+".3", "--filter", "observed.>"),
		"filter")
	require.Contains(t, cli.Fails(2, "subscriber", "create", "No Name", "--credentials", file+".4"), "name")
	require.Regexp(t, `(?m)^ci .* revoked$`, cli.OK("subscriber", "revoke", "ci"))
	require.Contains(t, cli.Fails(5, "subscriber", "revoke", "ci"), "does not exist: see `lockstep subscriber list`")
	require.NotContains(t, cli.OK("subscriber", "list"), "ci ")
	require.Regexp(t, `(?m)^ci .* revoked$`, cli.OK("subscriber", "list", "--all"))
}

func commandsRefuse(cli fixture.CLI) {
	t := cli.T
	stranger := cli.With("LOCKSTEP_TOKEN=lsp_nobody")
	for _, command := range [][]string{{"deploys", "list"}, {"deploys", "sinks"}, {"subscriber", "list"}} {
		require.NotContains(t, stranger.Fails(3, command...), "lsp_nobody")
	}
	away := cli.With("LOCKSTEP_DEPLOYS_SERVER=http://127.0.0.1:1")
	require.Contains(t, away.Fails(13, "deploys", "list"), "127.0.0.1:1")
}
