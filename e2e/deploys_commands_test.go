package e2e_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// receiver is a webhook that counts what it is sent, by event.
type receiver struct {
	*httptest.Server

	mu  sync.Mutex
	got map[string]int
}

func receive(t *testing.T) *receiver {
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

// TestDeployCommands uses the commands about deploys and subscribers as people do, against everything real.
func TestDeployCommands(t *testing.T) {
	t.Parallel()
	hook, dir := receive(t), t.TempDir()
	sinks := filepath.Join(dir, "sinks.yaml")
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"), 0o600))
	require.NoError(t, os.WriteFile(sinks, []byte("hook:\n  type: webhook\n  backfill: true\n  network: {allow_private: true}\n  webhook: {url: '"+hook.URL+"', secret_file: "+secret+"}\n"), 0o600))
	s := startWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: func(service string, config any) {
		if service == stack.Deploys {
			config.(*deploys.Config).SinksFile = sinks
		}
	}})
	cli := s.commandLine()
	watch := cli.begin("deploys", "watch")
	w := s.shopDeployment("commanded", 2)
	watch.line("commanded/deployment/web", "completed")
	w.image(secondImage)
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2")
	watch.line("commanded/deployment/web", "r2", "completed")

	s.together(
		promise{"rollouts are listed, shown and counted", func(s *system) { commandsShowRollouts(s, cli.in(s.t)) }},
		promise{"sinks are shown, set back and told again", func(s *system) { commandsKeepSinks(s, cli.in(s.t), hook) }},
		promise{"subscribers are made and revoked", func(s *system) { commandsMakeSubscribers(s, cli.in(s.t)) }},
		promise{"who may not is told so", func(s *system) { commandsRefuse(cli.in(s.t)) }},
	)
	require.Zero(t, watch.interrupt())
}

func commandsShowRollouts(s *system, cli commandLine) {
	t := s.t
	require.Regexp(t, `commanded/deployment/web +2 +updated +completed`, cli.ok("deploys", "list", "-n", "commanded"))
	list := printed(t, cli.ok("deploys", "list", "commanded/web", "-o", "yaml"), &deploysv1.ListRolloutsResponse{}).GetRollouts()
	require.Len(t, list, 2)
	shown := printed(t, cli.ok("deploys", "get", list[1].GetId(), "-o", "json"), &deploysv1.GetRolloutResponse{})
	require.EqualValues(t, 1, shown.GetRollout().GetRevision())
	require.Equal(t, "started", shown.GetFacts()[0].GetFact())
	require.Contains(t, cli.ok("deploys", "get", "commanded/web", "--revision", "1"), list[1].GetId())
	require.Regexp(t, `commanded/deployment/web +2 `, cli.ok("deploys", "stats", "--since", "1h"))
	require.Contains(t, cli.fails(5, "deploys", "get", "commanded/none"), "a rollout of deployment commanded/none does not exist")
	require.Contains(t, cli.fails(5, "deploys", "get", "commanded/web", "--revision", "9"), "does not exist")
	require.Contains(t, cli.fails(2, "deploys", "stats", "--since", "1h", "--until", "2h"), "is not before")
}

func commandsKeepSinks(s *system, cli commandLine, hook *receiver) {
	t := s.t
	facts := printed(t, cli.ok("deploys", "get", "commanded/web", "-o", "json"), &deploysv1.GetRolloutResponse{}).GetFacts()
	first := facts[0].GetId()
	sent := func(times int) {
		t.Helper()
		require.Eventually(t, func() bool { return hook.times(first) == times }, patience, clusterTick, "%d times", times)
	}
	sent(1)
	require.Regexp(t, `(?m)^hook +webhook +\d+ +0 `, cli.ok("deploys", "sinks"))
	cli.ok("deploys", "resend", "hook", first)
	sent(2)
	cli.ok("deploys", "backfill", "hook")
	sent(3)
	require.Contains(t, cli.fails(5, "deploys", "resend", "hook", "none"), `there is no fact "none"`)
	require.Contains(t, cli.fails(5, "deploys", "resend", "none", first), "none")
	require.Contains(t, cli.fails(5, "deploys", "backfill", "none"), "none")
	require.Contains(t, cli.ok("deploys", "sinks", "--manual"), "webhook.secret_file")
}

func commandsMakeSubscribers(s *system, cli commandLine) {
	t := s.t
	file := filepath.Join(t.TempDir(), "ci.json")
	made := printed(t, cli.ok("subscriber", "create", "ci", "--credentials", file, "--filter", "deploy.*.commanded.>", "--from-beginning", "-o", "json"), &statev1.Subscriber{})
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
	s.secrets.add(credentials.Password)

	require.Regexp(t, `(?m)^ci +\S*deploy\.\*\.commanded\.> .* active$`, cli.ok("subscriber", "list"))
	require.Contains(t, cli.fails(6, "subscriber", "create", "other", "--credentials", file), "exists already")
	require.Contains(t, cli.fails(6, "subscriber", "create", "ci", "--credentials", file+".2"), "ci")
	require.NoFileExists(t, file+".2")
	require.Contains(t, cli.fails(2, "subscriber", "create", "wide", "--credentials", file+".3", "--filter", "observed.>"), "filter")
	require.Contains(t, cli.fails(2, "subscriber", "create", "No Name", "--credentials", file+".4"), "name")
	require.Regexp(t, `(?m)^ci .* revoked$`, cli.ok("subscriber", "revoke", "ci"))
	require.Contains(t, cli.fails(5, "subscriber", "revoke", "ci"), "does not exist: see `lockstep subscriber list`")
	require.NotContains(t, cli.ok("subscriber", "list"), "ci ")
	require.Regexp(t, `(?m)^ci .* revoked$`, cli.ok("subscriber", "list", "--all"))
}

func commandsRefuse(cli commandLine) {
	t := cli.t
	stranger := cli.with("LOCKSTEP_TOKEN=lsp_nobody")
	for _, command := range [][]string{{"deploys", "list"}, {"deploys", "sinks"}, {"subscriber", "list"}} {
		require.NotContains(t, stranger.fails(3, command...), "lsp_nobody")
	}
	away := cli.with("LOCKSTEP_DEPLOYS_SERVER=http://127.0.0.1:1")
	require.Contains(t, away.fails(13, "deploys", "list"), "127.0.0.1:1")
}
