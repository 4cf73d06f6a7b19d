package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/detection/played"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// elsewhere is the cluster of the intruder's project. Its watcher is played, with the agent's real credentials.
const elsewhere = "cluster-elsewhere"

// tenant is a project with rollouts, and somebody who may read them.
type tenant struct {
	cli commandLine
	// workload as commands name it, and the cluster that it is in.
	workload, cluster string
	// rollout is the id of one of it.
	rollout string
	// roll begins a rollout of it and brings it to its end, of the revision.
	roll     func()
	revision string
}

// rolloutsAreShownToNobodyElse has two projects roll out at once, and asks each in every way for what is the other's.
func rolloutsAreShownToNobodyElse(s *scene, ours *shop) {
	t := s.t
	i := s.intrude(s.intruder, s.own.id)
	w := &played.Watcher{
		Cell: stack.Cell, Agent: s.intruder.AgentID, Cluster: elsewhere, Now: time.Now().Add(-time.Hour).UTC().Truncate(time.Second),
		Say: func(m *nats.Msg) error { i.published(m); return nil },
	}
	theirs := w.Deployment("theirs", nil)
	for _, step := range []func() error{func() error { return w.List("r1", theirs) }, func() error { return theirs.Roll("2") }, theirs.Finish} {
		require.NoError(t, step())
	}
	i.flush()
	s.awaitFact(elsewhere, "2")

	here := &tenant{workload: "isolated/deployment/web", cluster: s.clusterUID(), revision: "r3", cli: s.commandsOf("here", s.system.project), roll: func() { ours.image(thirdImage) }}
	there := &tenant{workload: played.Namespace + "/deployment/theirs", cluster: elsewhere, revision: "r3", cli: s.commandsOf("there", s.project), roll: func() {
		require.NoError(t, theirs.Roll("3"))
		require.NoError(t, theirs.Finish())
		i.flush()
	}}
	tenants := []*tenant{here, there}
	for n, own := range tenants {
		own.sees(tenants[1-n])
	}
	watches := make([]*running, len(tenants))
	for n, own := range tenants {
		watches[n] = own.cli.begin("deploys", "watch", "--ended", "100")
		watches[n].line(own.workload, "r2")
	}
	for _, own := range tenants {
		own.roll()
	}
	for n, own := range tenants {
		watches[n].lineWithout(tenants[1-n].workload, own.workload, own.revision, "completed")
	}
	// Each has heard the end of its own, so that the other's would have come.
	for n := range tenants {
		require.Zero(t, watches[n].interrupt())
		for line := range watches[n].lines {
			require.NotContains(t, line, tenants[1-n].workload)
		}
	}
	s.subscribersHearTheirOwn(tenants)
	require.Empty(t, i.complaints)
}

// commandsOf is the command line of somebody who may read one project and nothing else.
func (s *scene) commandsOf(name string, project int64) commandLine {
	s.t.Helper()
	ctx := s.t.Context()
	user, err := s.api.Directory.CreateUser(ctx, connect.NewRequest(&statev1.CreateUserRequest{Username: name}))
	require.NoError(s.t, err)
	id := user.Msg.GetUser().GetId()
	_, err = s.api.Directory.PutMembership(ctx, connect.NewRequest(&statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: statev1.Role_ROLE_READER,
	}}))
	require.NoError(s.t, err)
	token, err := s.api.Tokens.CreateToken(ctx, connect.NewRequest(&statev1.CreateTokenRequest{Name: name, UserId: id}))
	require.NoError(s.t, err)
	s.secrets.add(token.Msg.GetValue())
	return s.commandLine().with("LOCKSTEP_TOKEN=" + token.Msg.GetValue())
}

func (s *system) clusterUID() string {
	s.t.Helper()
	var uid string
	for _, r := range s.records(topology.FamilyDeploy) {
		if parsed, err := topology.Parse(r.subject); err == nil && parsed.Tokens[0] != elsewhere {
			uid = parsed.Tokens[0]
		}
	}
	require.NotEmpty(s.t, uid)
	return uid
}

// awaitFact returns when a rollout of the played Deployment is told to be complete.
func (s *system) awaitFact(cluster, revision string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return slices.ContainsFunc(s.records(topology.FamilyDeploy), func(r record) bool {
			return r.subject == stack.Cell.Deploy(cluster, played.Namespace, "deployment", "theirs", "completed") && strings.Contains(string(r.data), `"revision":`+revision)
		})
	}, patience, clusterTick)
}

// sees its own and nothing of the other's, who knows even the names of that.
func (own *tenant) sees(other *tenant) {
	t := own.cli.t
	t.Helper()
	// A new user is known to the service a moment later.
	require.Eventually(t, func() bool {
		code, out, _ := own.cli.run("deploys", "list")
		return code == 0 && strings.Contains(out, own.workload)
	}, patience, clusterTick)
	namespace, name := strings.Split(other.workload, "/")[0], strings.Split(other.workload, "/")[2]
	for _, asked := range [][]string{
		{"list", "--limit", "0"},
		{"list", other.workload},
		{"list", "--cluster", other.cluster},
		{"list", "-n", namespace},
		{"list", "--name", name},
		{"list", "-l", "app=" + name},
		{"stats", "--since", "24h"},
		{"stats", "--since", "24h", "--cluster", other.cluster},
		{"stats", "--since", "24h", "-n", namespace},
	} {
		for _, format := range []string{"table", "json"} {
			out := own.cli.ok(append([]string{"deploys", "-o", format}, asked...)...)
			require.NotContains(t, out, other.workload, asked)
			require.NotContains(t, out, `"cluster_uid": "`+other.cluster, asked)
		}
	}
	require.Contains(t, own.cli.ok("deploys", "stats", "--since", "24h"), own.workload)
	found := printed(t, own.cli.ok("deploys", "list", own.workload, "-o", "json"), &deploysv1.ListRolloutsResponse{}).GetRollouts()
	require.NotEmpty(t, found)
	own.rollout = found[0].GetId()
	require.Contains(t, own.cli.ok("deploys", "get", own.rollout), own.workload)
	for _, thing := range []string{other.workload, other.rollout} {
		if thing != "" {
			require.Contains(t, own.cli.fails(5, "deploys", "get", thing), "does not exist")
			require.Contains(t, other.cli.ok("deploys", "get", thing), other.workload, "which it does")
		}
	}
	for _, command := range [][]string{{"clusters"}, {"clusters", "release", own.cluster, "--yes"}, {"clusters", "release", other.cluster, "--yes"}, {"sinks"}} {
		require.Contains(t, own.cli.fails(4, append([]string{"deploys"}, command...)...), "is no administrator of this cell")
	}
}

// lineWithout reads on until a line has all of the words, and checks that none before has what it must not.
func (r *running) lineWithout(unseen string, words ...string) {
	r.t.Helper()
	for {
		line := r.line()
		require.NotContains(r.t, line, unseen)
		if containsAll(line, words) {
			return
		}
	}
}

// subscribersHearTheirOwn lets a tool of each tenant read the facts of its cluster, and try to read the other's.
func (s *scene) subscribersHearTheirOwn(tenants []*tenant) {
	t := s.t
	cli := s.commandLine()
	credentials := make([]natsauth.SubscriberCredentials, len(tenants))
	for n, own := range tenants {
		name := []string{"tool-here", "tool-there"}[n]
		file := filepath.Join(t.TempDir(), name+".json")
		cli.ok("subscriber", "create", name, "--filter", "deploy."+own.cluster+".>", "--from-beginning", "--credentials", file)
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		credentials[n] = readSubscriber(t, raw)
		s.secrets.add(credentials[n].Password)
	}
	for n, own := range tenants {
		mine, theirs := credentials[n], credentials[1-n]
		prefix := stack.Cell.Prefix(topology.FamilyDeploy) + "." + own.cluster + "."
		reader, complaints := connectSubscriber(t, mine, mine.User)
		consumer, err := natstest.Open(t, reader).Consumer(t.Context(), mine.Stream, mine.Consumer)
		require.NoError(t, err)
		want := 0
		for _, r := range s.records(topology.FamilyDeploy) {
			if strings.HasPrefix(r.subject, prefix) {
				want++
			}
		}
		require.Positive(t, want)
		for heard := range want {
			m, err := consumer.Next(jetstream.FetchMaxWait(patience))
			require.NoError(t, err, "%d of %d", heard, want)
			require.True(t, strings.HasPrefix(m.Subject(), prefix), m.Subject())
			require.NoError(t, m.Ack())
		}
		info, err := consumer.Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.NumPending, "there is no more for it")
		for _, subject := range []string{
			"$JS.API.CONSUMER.MSG.NEXT." + theirs.Stream + "." + theirs.Consumer, "$JS.API.CONSUMER.INFO." + theirs.Stream + "." + theirs.Consumer,
			"$JS.API.STREAM.MSG.GET." + theirs.Stream, "$JS.API.DIRECT.GET." + theirs.Stream, "$JS.API.CONSUMER.CREATE." + theirs.Stream,
		} {
			require.NoError(t, reader.PublishRequest(subject, mine.InboxPrefix+".x", []byte("{}")))
			requireDenied(t, reader, complaints, subject)
		}
		_, err = reader.SubscribeSync(theirs.Filter)
		require.NoError(t, err)
		requireDenied(t, reader, complaints, theirs.Filter)

		listener, complaints := connectSubscriber(t, mine, mine.Listener)
		for _, subject := range []string{theirs.Filter, stack.Cell.All(topology.FamilyDeploy), stack.Cell.All(topology.FamilyObserved), ">"} {
			_, err = listener.SubscribeSync(subject)
			require.NoError(t, err)
			requireDenied(t, listener, complaints, subject)
		}
		_, err = listener.SubscribeSync(mine.Filter)
		require.NoError(t, err)
		require.NoError(t, listener.FlushTimeout(patience))
		require.Empty(t, complaints, "its own it may hear")
	}
}
